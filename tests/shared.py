"""Location of the public measurements that some tests read; they are never distributed with the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_data(*parts: str) -> Path:
    """Path of a public measurement beside the checkout; skips the test with a reason if missing.

    `COTENANT_SHARED_DATA` overrides the location.
    """
    root = Path(
        os.environ.get("COTENANT_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
    )
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"public measurements are not here: {'/'.join(parts) or 'data'} (see docs/data.md)")
    return path
