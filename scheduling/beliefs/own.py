"""A user's predictor, given as `module:attribute`, with checks of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from predictor.types import PredictionArrays, SetPredictor
from profiling.errors import InputError
from profiling.importing import import_attribute, own_code
from profiling.workload import ColocationSet

_EXPECTED = "an object with predict_arrays(sets), or a class or function without arguments that returns one"
_OF_MEMBERS = ("solo_step_time_s", "step_time_s", "slowdown", "memory_bytes", "utilization_ratio")


def load_belief(name: str) -> SetPredictor:
    """Load the belief of policies: a user's `module:attribute`, else via `predictor.load_predictor`."""
    if ":" in name and not name.startswith("models:/"):
        return own_predictor(name)
    from predictor import load_predictor

    return load_predictor(name)


def own_predictor(name: str) -> SetPredictor:
    """The predictor at `module:attribute`, wrapped to check its answers.

    Raises:
        InputError: it cannot be imported or made, or has no `predict_arrays`.
    """
    value: Any = import_attribute(name, _EXPECTED)
    if callable(value) and (isinstance(value, type) or not hasattr(value, "predict_arrays")):
        with own_code(name):
            value = value()
    if not callable(getattr(value, "predict_arrays", None)):
        raise InputError(f"{name!r} is not a predictor", expected=_EXPECTED, got=type(value).__name__)
    return _Checked(name, cast(SetPredictor, value))


class _Checked:
    """Forwards queries and refuses invalid answers."""

    def __init__(self, name: str, predictor: SetPredictor) -> None:
        self.name, self.predictor = name, predictor

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`. Raises `InputError` if it fails, or for an answer of the wrong type, shape or range."""
        with own_code(self.name):
            answer = self.predictor.predict_arrays(sets)
        if not isinstance(answer, PredictionArrays):
            raise InputError(
                f"{self.name} returned a wrong result", expected="PredictionArrays", got=type(answer).__name__
            )
        shape = answer.mask.shape
        members = [len(colocation_set.workloads) for colocation_set in sets]
        if len(shape) != 2 or shape[0] != len(sets) or answer.mask.sum(axis=1).tolist() != members:
            raise InputError(
                f"{self.name}: mask",
                expected=f"[{len(sets)}, M], True where there is a member",
                got=str(shape),
            )
        for name in _OF_MEMBERS:
            self._check(name, getattr(answer, name), shape)
        for name in ("memory_upper_bytes", "fits"):
            self._check(name, getattr(answer, name), shape[:1])
        if (answer.slowdown[answer.mask] < 1).any():
            raise InputError(
                f"{self.name}: slowdown",
                expected="numbers from 1",
                got=float(answer.slowdown[answer.mask].min()),
            )
        return answer

    def _check(self, name: str, values: Any, shape: tuple[int, ...]) -> None:
        if np.shape(values) != shape or not np.isfinite(np.asarray(values, float)).all():
            raise InputError(
                f"{self.name}: {name}", expected=f"finite numbers of shape {shape}", got=str(np.shape(values))
            )
