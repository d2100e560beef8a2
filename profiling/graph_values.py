"""Checks the values of a stored graph.

A damaged file is rejected before it gives an answer of NaN.
"""

from __future__ import annotations

from dataclasses import Field
from typing import Any

import numpy as np

from profiling.errors import InputError

# Minimum of numbers that may be negative, or must be positive.
_LEAST = {"layer_index": -1, "repeat": 1, "batch_size": 1}


def check_values(name: str, field_type: str, values: Any) -> None:
    """Check `values`, one field of a graph or of all its operators, against the field's type.

    Numbers must be finite and not negative (`layer_index` at least -1, `repeat` and `batch_size` at least 1).

    Args:
        name: name of the field.
        field_type: as annotated: `float`, `int`, `bool` or `str`; any other passes.
        values: the values.

    Raises:
        InputError: a value is invalid.
    """
    if field_type in ("float", "int"):
        least = _LEAST.get(name, 0)
        # [N]; a string or None among numbers gives an array of another kind.
        array = np.asarray(values)
        kinds = "iuf" if field_type == "float" else "iu"
        if array.size and not (
            array.ndim == 1
            and array.dtype.kind in kinds
            and np.isfinite(array).all()
            and (array >= least).all()
        ):
            what = "finite numbers" if field_type == "float" else "integers"
            raise _damaged(name, f"{what} from {least}", values)
    elif field_type in ("str", "bool"):
        kind = str if field_type == "str" else bool
        if not set(map(type, values)) <= {kind}:
            raise _damaged(name, "text" if field_type == "str" else "true or false", values)


def check_scalars(scalars: dict[str, Any], known: tuple[Field[Any], ...]) -> None:
    """Check the totals and names of a graph against their fields.

    Raises:
        InputError: a value is invalid.
    """
    for field in known:
        if field.name in scalars:
            check_values(field.name, str(field.type), [scalars[field.name]])
    if not isinstance(scalars.get("options"), dict):
        raise _damaged("options", "an object", scalars.get("options"))


def _damaged(name: str, expected: str, values: Any) -> InputError:
    return InputError(f"{name} of the computation graph is damaged", expected=expected, got=f"{values!r:.80}")
