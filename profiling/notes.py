"""What code warns of, in the words of a command line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """A `UserWarning`, such as what a capture took for granted, is a line on stderr without its place in the code."""
    with warnings.catch_warnings():
        plain = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if category is UserWarning:
                print(f"note: {message}", file=sys.stderr)
            else:
                plain(message, category, *place, **more)

        warnings.showwarning = show
        yield
