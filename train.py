"""`python train.py --data DIR --out MODEL_DIR`: train the predictor; the same as `cotenant train`.

`python train.py sweep --data DIR --trials N` looks for a better configuration; the same as `cotenant sweep`.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from serving.cli.main import main

    main(sys.argv[1:] if sys.argv[1:2] == ["sweep"] else ["train", *sys.argv[1:]])
