"""User-defined predictors, and predictions that no policy could use."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from predictor.types import PredictionArrays
from profiling.errors import InputError
from profiling.workload import ColocationSet
from scheduling.beliefs.own import load_belief
from tests.scheduling.tables import JOBS, table

SETS = [ColocationSet("v100", JOBS[:2]), ColocationSet("k80", JOBS[:1])]


class Own:
    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        return replace(table().predict_arrays(sets), **self.changes)


@pytest.fixture
def module() -> Iterator[Any]:
    made: Any = types.ModuleType("own_predictors_of_test")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def test_object_class_and_function(module: Any) -> None:
    module.OBJECT, module.Class, module.make = Own(), Own, lambda: Own()
    for name in ("OBJECT", "Class", "make"):
        answer = load_belief(f"own_predictors_of_test:{name}").predict_arrays(SETS)
        assert answer.slowdown == pytest.approx(table().predict_arrays(SETS).slowdown)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slowdown": np.full((2, 2), 0.5)}, "numbers from 1"),
        ({"slowdown": np.ones((2, 1))}, "shape"),
        ({"step_time_s": np.full((2, 2), np.nan)}, "finite"),
        ({"fits": np.ones(3, bool)}, "shape"),
        ({"mask": np.ones((2, 2), bool)}, "mask"),
    ],
)
def test_invalid_predictions(module: Any, changes: dict[str, Any], message: str) -> None:
    module.OBJECT = Own(**changes)
    with pytest.raises(InputError, match=message):
        load_belief("own_predictors_of_test:OBJECT").predict_arrays(SETS)


def test_predictors_that_raise(module: Any) -> None:
    module.make, module.OBJECT = lambda: {}["made"], Own(no_such_field=1)
    with pytest.raises(InputError, match="test:make raised KeyError: 'made'"):
        load_belief("own_predictors_of_test:make")
    with pytest.raises(InputError, match="test:OBJECT raised TypeError"):
        load_belief("own_predictors_of_test:OBJECT").predict_arrays(SETS)


def test_invalid_predictors(module: Any) -> None:
    module.NUMBER, module.Other = 7, type("Other", (), {"predict_arrays": lambda self, sets: None})
    with pytest.raises(InputError, match="not a predictor"):
        load_belief("own_predictors_of_test:NUMBER")
    with pytest.raises(InputError, match="returned a wrong result"):
        load_belief("own_predictors_of_test:Other").predict_arrays(SETS)
