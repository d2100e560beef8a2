"""Checks of the values in a stored graph, so that a damaged file is refused before it gives an answer of NaN."""

from __future__ import annotations

from dataclasses import Field
from typing import Any

import numpy as np

from profiling.errors import InputError

# Numbers that may be less than 0, or must be more.
_LEAST = {"layer_index": -1, "repeat": 1, "batch_size": 1}


def check_values(name: str, field_type: str, values: Any) -> None:
    """Raise unless each of `values`, one field of a graph or of all its operators, is what its type says.

    Numbers are finite and not negative (`layer_index` is -1 or more, `repeat` and `batch_size` are 1 or more).

    Args:
        field_type: as annotated: `float`, `int`, `bool` or `str`; any other passes.

    Raises:
        InputError: a value is not.
    """
    if field_type in ("float", "int"):
        least = _LEAST.get(name, 0)
        # [N]; a string or None among numbers makes it an array of another kind.
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
    """Raise `InputError` unless the totals and names of a graph are what their fields say."""
    for field in known:
        if field.name in scalars:
            check_values(field.name, str(field.type), [scalars[field.name]])
    if not isinstance(scalars.get("options"), dict):
        raise _damaged("options", "an object", scalars.get("options"))


def _damaged(name: str, expected: str, values: Any) -> InputError:
    return InputError(f"{name} of the computation graph is damaged", expected=expected, got=f"{values!r:.80}")
