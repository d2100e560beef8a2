"""Refuses options that would have no effect: another one is missing or excludes them, or they are repeated."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from profiling.errors import InputError


def no_effect(context: typer.Context, where: str, *names: str) -> None:
    """Raise `InputError` if any of a command's parameters `names` was given on the command line.

    Args:
        where: why it would have no effect: `without --observe`.
    """
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            off = context.params.get(parameter.name or "") is False
            spellings = (*parameter.secondary_opts, *parameter.opts) if off else parameter.opts
            option = next(name for name in spellings if name.startswith("--"))
            raise InputError(f"{option} has no effect {where}", hint="leave it out" + _or_add(where))


def only(option: str, values: Sequence[str]) -> str:
    """The value of an option that is given once. Raises `InputError` if it is given more often."""
    if len(values) > 1:
        raise InputError(f"{option} is given {len(values)} times", expected="one", got=", ".join(values))
    return values[0]


def _or_add(where: str) -> str:
    needed = where.removeprefix("without ")
    return "" if needed == where else f", or add {needed}"
