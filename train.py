"""`python train.py --data DIR --out MODEL_DIR`: train the predictor. The same as `cotenant train`."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from serving.cli.main import main

    main(["train", *sys.argv[1:]])
