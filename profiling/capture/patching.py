"""Attributes of other modules, replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched(places: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes, each `(owner, name, value)`, while the block runs; not thread-safe."""
    saved = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, value in places:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in saved:
            setattr(owner, name, value)
