"""Shows warnings as notes on the command line."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print each `UserWarning`, such as a capture's assumption, once on stderr, without its source location."""
    seen = set[str]()
    with warnings.catch_warnings():
        plain = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if category is UserWarning:
                if str(message) not in seen:
                    seen.add(str(message))
                    print(f"note: {message}", file=sys.stderr)
            else:
                plain(message, category, *place, **more)

        warnings.showwarning = show
        yield
