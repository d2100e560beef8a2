"""The project's version, as installed."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


@lru_cache(maxsize=1)
def version() -> str:
    """`0` if the project runs from a folder that was never installed."""
    try:
        return installed("cotenant")
    except PackageNotFoundError:
        return "0"
