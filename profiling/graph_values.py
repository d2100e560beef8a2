"""Checks the values of a stored graph.

A damaged file is rejected before it gives an answer of NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import Field
from typing import Any

import numpy as np

from profiling.errors import InputError

# Minimum of numbers that may be negative, or must be positive.
_LEAST = {"layer_index": -1, "repeat": 1, "batch_size": 1}
# Far beyond any network, and products of a few such numbers are still finite.
_MOST = 1e30
_DIMENSIONS = 32
# Options of a graph that count something.
_COUNTS, _MOST_COUNTED = ("frozen_prefix", "gradient_accumulation", "processes"), 1e9


def check_values(name: str, field_type: str, values: Any) -> None:
    """Check `values`, one field of a graph or of all its operators, against the field's type.

    Numbers must be at most 1e30 and not negative (`layer_index` at least -1, `repeat` and `batch_size` at least 1).

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
        # NaN fails both comparisons.
        if array.ndim != 1 or (
            array.size and not (array.dtype.kind in kinds and ((array >= least) & (array <= _MOST)).all())
        ):
            what = "numbers" if field_type == "float" else "integers"
            raise _damaged(name, f"{what} from {least} to {_MOST:g}", values)
    elif field_type in ("str", "bool"):
        kind = str if field_type == "str" else bool
        if not set(map(type, values)) <= {kind}:
            raise _damaged(name, "text" if field_type == "str" else "true or false", values)


def check_shapes(shapes: Iterable[tuple[int, ...]]) -> None:
    """Check the output shapes of operators: few dimensions, and no more elements than a number may say.

    Raises:
        InputError: a shape is invalid.
    """
    for shape in shapes:
        if len(shape) > _DIMENSIONS or any(not 0 <= n <= _MOST for n in shape) or math.prod(shape) > _MOST:
            raise _damaged(
                "output_shape", f"up to {_DIMENSIONS} integers from 0, with a product up to {_MOST:g}", shape
            )


def check_layers(layer_index: Sequence[int], layers: Sequence[str]) -> None:
    """Check that every operator's layer is among `layers`, if the graph names any.

    Raises:
        InputError: one is not.
    """
    if layers and max(layer_index, default=-1) >= len(layers):
        raise _damaged("layer_index", f"integers from -1 to {len(layers) - 1}", max(layer_index))


def check_scalars(scalars: dict[str, Any], known: tuple[Field[Any], ...]) -> None:
    """Check the totals and names of a graph against their fields, and the numbers among its options.

    Raises:
        InputError: a value is invalid.
    """
    for field in known:
        if field.name in scalars:
            check_values(field.name, str(field.type), [scalars[field.name]])
    if not isinstance(scalars.get("options"), dict):
        raise _damaged("options", "an object", scalars.get("options"))
    for name in _COUNTS:
        count = scalars["options"].get(name)
        if not (count is None or (isinstance(count, int | float) and 0 <= count <= _MOST_COUNTED)):
            raise _damaged(f"options.{name}", f"a number from 0 to {_MOST_COUNTED:g}", count)
    frozen = scalars["options"].get("frozen_layers", [])
    if not isinstance(frozen, list) or not all(isinstance(layer, int) for layer in frozen):
        raise _damaged("options.frozen_layers", "a list of layer indices", frozen)


def _damaged(name: str, expected: str, values: Any) -> InputError:
    return InputError(f"{name} of the computation graph is damaged", expected=expected, got=f"{values!r:.80}")
