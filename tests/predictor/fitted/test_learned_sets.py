"""Sets that have the id of one that the predictor learned from."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from predictor.evaluation.evaluation import evaluate
from predictor.evaluation.observing import evaluate_observing
from predictor.fitted.learned_sets import learned_rows
from predictor.predictor import Predictor
from predictor.training.fine_tuning import new_sets
from profiling.errors import InputError

Tables = tuple[pd.DataFrame, pd.DataFrame]


def test_learned_sets_are_known_by_id(predictor: Predictor, measured: Tables) -> None:
    colocation = measured[0]
    first = colocation.set_id == colocation.set_id.iloc[0]
    some = colocation.assign(set_id=colocation.set_id.where(first, "new/" + colocation.set_id))
    assert learned_rows(predictor.fitted_, some).tolist() == first.tolist()


@pytest.mark.parametrize("column", ["source", "campaign", "architecture", "device"])
def test_an_id_that_another_set_has_is_refused(predictor: Predictor, measured: Tables, column: str) -> None:
    colocation, solo = measured
    other = colocation.assign(**{column: "another"})
    count = colocation.set_id.nunique()
    message = f"expected ids of its own.*got {count} of the {count} known ids with another {column}, such as"
    with pytest.raises(InputError, match=message):
        learned_rows(predictor.fitted_, other)
    with pytest.raises(InputError, match=message):
        evaluate(predictor, other, solo)
    with pytest.raises(InputError, match=message):
        evaluate_observing(predictor, other, solo, 1)
    with pytest.raises(InputError, match=message):
        new_sets(predictor, other)


def test_sets_are_learned_under_the_hash_of_a_graph_too(predictor: Predictor, measured: Tables) -> None:
    hashed = measured[0].assign(architecture="graph:0123")
    assert learned_rows(predictor.fitted_, hashed).all()


def test_sets_learned_under_a_hash_may_have_a_name_now(predictor: Predictor, measured: Tables) -> None:
    graph = f"graph:{'0' * 64}"
    manifest = replace(predictor.fitted_.manifest, architectures=(graph,))
    named = measured[0].assign(architecture="nets:mlp", workload=f"{graph}:precision=amp")
    assert learned_rows(replace(predictor.fitted_, manifest=manifest), named).all()
