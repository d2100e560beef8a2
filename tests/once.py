"""Read-only objects that take seconds to create: created once per run, for all workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from tests.shared import shared_data

FOLDER = "COTENANT_TEST_RUN"
"""Environment variable with the folder of this run, see `tests/conftest.py`."""


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The file or folder that `make` writes to the path it is given; the first caller creates it."""
    root = Path(os.environ[FOLDER])
    made, unfinished = root / name, root / f"{name}.unfinished"
    with FileLock(root / f"{name}.lock"):
        if not made.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(made)
    return made


def gavel_tables() -> Path:
    """Gavel's measurements as tables; skips the test if they are not beside the checkout."""
    from datasets.importers import import_source

    source = shared_data("gavel")
    return made_once("gavel", lambda folder: import_source("gavel", source, folder))
