"""`python -m benchmarks --list` names every benchmark."""

from __future__ import annotations

from pathlib import Path

import benchmarks
from benchmarks.__main__ import SELF_CONTAINED, WITH_DATA


def test_every_benchmark_is_listed() -> None:
    files = Path(benchmarks.__file__).parent.glob("*.py")
    runnable = {f.stem for f in files if '__name__ == "__main__"' in f.read_text()}
    # The first starts all others; the second is a job that `reality` starts.
    runnable -= {"__main__", "reality_job"}
    assert runnable == {*SELF_CONTAINED, *WITH_DATA}
