"""Validates fields of configurations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from profiling.errors import InputError


def check_range(config: Any, holds: Callable[[Any], bool], expected: str, *names: str) -> None:
    """Raise `InputError` for the first of these fields whose value does not hold."""
    for name in names:
        value = getattr(config, name)
        if not holds(value):
            raise InputError(f"{name} is out of range", expected=expected, got=value)


def check_fields(
    section: str, config: Any, positive: Sequence[str] = (), most: Mapping[str, int] | None = None
) -> None:
    """Check the fields of a dataclass annotated as `int`, `float` or `bool`, which a YAML file may state as anything.

    Numbers must be at least 0.

    Args:
        section: prefix of the field in messages.
        positive: fields of `int` that are at least 1, and of `float` that are above 0.
        most: the largest value of fields of `int` that memory grows with.

    Raises:
        InputError: the first invalid field.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if field.type == "bool":
            expected, holds = "true or false", isinstance(value, bool)
        elif field.type == "int":
            least = int(field.name in positive)
            limit = (most or {}).get(field.name, math.inf)
            expected = f"an integer from {least}" + (f" to {limit}" if limit < math.inf else "")
            holds = is_number and isinstance(value, int) and least <= value <= limit
        elif field.type == "float":
            above = field.name in positive
            expected = "a number above 0" if above else "a number from 0"
            holds = is_number and 0 <= value < math.inf and not (above and value == 0)
        else:
            continue
        if not holds:
            # To YAML, `"4"` and `1e-3` are texts.
            text = isinstance(value, str)
            raise InputError(
                f"{section}.{field.name} is out of range",
                expected=expected,
                got=f"the text {value!r}" if text else value,
                hint="write numbers without quotation marks, exponents like 1.0e-3"
                if text and field.type != "bool"
                else None,
            )
