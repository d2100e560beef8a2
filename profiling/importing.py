"""Objects of the user's own code, named `module:attribute` on the command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from profiling.errors import InputError


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
