"""Mixed-integer linear programs by HiGHS, which `scipy.optimize.milp` calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from predictor.types import Floats


def solve_milp(cost: Floats, **arguments: Any) -> Any:
    """As `scipy.optimize.milp`, with nothing on stdout."""
    from scipy.optimize import milp

    with _quiet():
        return milp(cost, **arguments)


@contextmanager
def _quiet() -> Iterator[None]:
    """Redirect what HiGHS writes to file descriptor 1 to stderr.

    It writes a line occasionally, whatever its options, and stdout is for a command's JSON.
    """
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
