"""Suggestions for misspelt names in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Lists of up to `_SHORT` names are shown whole; up to `_LONG` if no name is similar.
_SHORT = 8
_LONG = 30


def near_names(wanted: str, known: Iterable[str]) -> list[str]:
    """At most three of `known` that contain `wanted`, or else have a similar spelling.

    >>> near_names("batch", ["batch_size", "precision"])
    ['batch_size']
    >>> near_names("fif", ["sjf", "fifo"])
    ['fifo']
    """
    names = list(known)
    part = [name for name in sorted(names) if wanted and wanted.lower() in name.lower()]
    return part[:3] or difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)


def did_you_mean(*names: str) -> str | None:
    """The `hint` of an error about a name that is probably one of `names`; None without any.

    >>> did_you_mean("nets:cnn")
    'did you mean nets:cnn?'
    >>> did_you_mean("fifo", "sjf", "srtf")
    'did you mean fifo, sjf or srtf?'
    """
    if not names:
        return None
    return f"did you mean {' or '.join(part for part in (', '.join(names[:-1]), names[-1]) if part)}?"


def one_of(wanted: str, known: Iterable[str]) -> str:
    """The `expected` text of an error: all names, or of many only those similar to `wanted`.

    If none is similar, it gives the first ones.

    >>> one_of("fif", ["sjf", "fifo", "srtf"])
    'one of fifo, sjf, srtf'
    >>> one_of("fif", ["fifo", *"abcdefghi"])
    'one of 10 names, such as fifo'
    >>> one_of("zzz", (f"name-{number}" for number in range(40)))
    'one of 40 names: name-0, name-1, name-2, name-3, name-4, name-5, name-6, name-7, ...'
    """
    names = list(known)
    near = near_names(wanted, names)
    if near and len(names) > _SHORT:
        return f"one of {len(names)} names, such as {', '.join(near)}"
    if len(names) > _LONG:
        return f"one of {len(names)} names: {', '.join(names[:_SHORT])}, ..."
    return "one of " + ", ".join([*near, *(name for name in names if name not in near)])
