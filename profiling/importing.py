"""Objects of the user's own code, named `module:attribute` on the command line."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from profiling.errors import CotenantError, InputError


def import_attribute(name: str, expected: str) -> object:
    """The object called `module:attribute`, also looked up in the current folder.

    This runs the module's code.

    Args:
        name: `module:attribute`.
        expected: what it should be, for the error.

    Raises:
        InputError: no such module or attribute, or importing the module fails.
    """
    where, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        value: object = importlib.import_module(where)
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:  # anything that the user's code may raise
        got = (
            str(error)
            if isinstance(error, ImportError | AttributeError)
            else f"{type(error).__name__}: {error}"
        )
        raise InputError(f"{name!r} cannot be imported", expected=expected, got=got) from error
    return value


@contextlib.contextmanager
def own_code(name: str, kind: type[CotenantError] = InputError) -> Iterator[None]:
    """Turn whatever the user's code at `name` raises into an error of that kind."""
    try:
        yield
    except CotenantError:
        raise
    except Exception as error:  # anything that the user's code may raise
        raise kind(f"{name} raised {type(error).__name__}: {error}") from error
