"""Space-separated lists of numbers, folded before the parser sees them.

The parser takes one value per option (`--workers 4 --workers 8`), but people write `--workers 4 8`.
"""

from __future__ import annotations

LIST_OPTIONS: dict[tuple[str, ...], frozenset[str]] = {
    ("plan", "pipeline"): frozenset({"--workers", "--bandwidth"}),
}
"""Command → its options that take a list of numbers."""


def fold_lists(arguments: list[str]) -> list[str]:
    """Repeat a list option before each further number that follows it.

    >>> fold_lists(["plan", "pipeline", "g.txt", "--workers", "4", "8", "--json"])
    ['plan', 'pipeline', 'g.txt', '--workers', '4', '--workers', '8', '--json']
    """
    options = next((o for c, o in LIST_OPTIONS.items() if tuple(arguments[: len(c)]) == c), frozenset())
    folded: list[str] = []
    current = ""
    values = 0
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, _ = argument.partition("=")
            current, values = (name, int(bool(equals))) if name in options else ("", 0)
            folded.append(argument)
        elif current and _is_number(argument):
            folded += [argument] if values == 0 else [current, argument]
            values += 1
        else:
            current = ""
            folded.append(argument)
    return folded


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
