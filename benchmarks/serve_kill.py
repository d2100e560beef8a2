"""SIGKILL the service in the middle of writes, 200 times; nothing that was acknowledged may be lost or be half there."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.record import record


def main() -> None:
    from tests.serving import killing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cotenant-kill-") as folder:
        result = killing.run(Path(folder), options.kills)
    print(result)
    record("serve_kill", {"kills": options.kills, "seconds": time.monotonic() - started, **result})
    if result["lost"] or result["half"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
