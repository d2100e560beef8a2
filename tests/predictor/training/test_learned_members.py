"""What fine-tuning learns from a table, and what of it is known afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from predictor.examples.cross_fit import ExampleFold, Group
from predictor.examples.examples import examples_of
from predictor.examples.observations import Observation
from predictor.examples.observed_rows import training_tables
from predictor.learning.evidence.trained_on import TrainedOn
from predictor.predictor import Predictor
from predictor.training.fine_tuning import FineTuning, fine_tune
from predictor.training.fit import left_out_errors
from predictor.training.validation import HeldOut
from profiling.workload import ColocationSet, Workload
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, of_device

Tables = tuple[pd.DataFrame, pd.DataFrame]
QUICK = FineTuning(epochs=3, cross_fits=1)


@pytest.fixture(scope="module")
def base() -> Predictor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("predictor.training.fit.CROSS_FITS", 2)
        return Predictor(NETWORK, replace(TRAINING, epochs=5), graph_source, "m-1").fit(*of_device("v100"))


def seen(jobs: tuple[str, ...], member: int, step_time_s: float, model: str) -> Observation:
    asked = ColocationSet("p100", tuple(map(Workload.parse, jobs)))
    return Observation(asked, member, step_time_s, model_version=model)


def test_a_member_without_a_solo_step_time_is_not_learned(base: Predictor) -> None:
    """What was observed of it corrects the next model, too, which would else fall back to the cost model."""
    pair = ("beta", "alpha")
    told = [seen(("alpha",), 0, 0.02, "m-1"), seen(pair, 0, 0.09, "m-1"), seen(pair, 1, 0.03, "m-1")]
    tuned = fine_tune(base, *training_tables(told), QUICK)
    tuned.version = "m-2"
    assert [o in TrainedOn.of(tuned) for o in told] == [False, False, True]
    known = [*told, seen(("beta",), 0, 0.05, "m-1")]
    tuned = fine_tune(base, *training_tables(known), QUICK)
    tuned.version = "m-2"
    assert [o in TrainedOn.of(tuned) for o in known] == [False, True, True, False]


def test_what_was_observed_after_a_set_was_learned_is_new_to_later_models(base: Predictor) -> None:
    """Fine-tuning skips known sets, so none of these models has learned it."""
    pair, other, alone = ("alpha", "beta"), ("alpha", "gamma"), seen(("alpha",), 0, 0.02, "")
    by_model = {name: seen(pair, 0, 0.03, name) for name in ("", "m-1", "m-2", "m-3", "unrelated")}
    second = fine_tune(base, *training_tables([alone, by_model["m-1"]]), QUICK)
    second.version = "m-2"
    later = seen(other, 0, 0.04, "m-2")
    third = fine_tune(second, *training_tables([alone, later, *by_model.values()]), QUICK)
    third.version = "m-3"
    assert len(third.fitted_.manifest.added_set_ids) == 1
    trained_on = TrainedOn.of(third)
    assert {name for name, o in by_model.items() if o in trained_on} == {"", "m-1", "unrelated"}
    assert later in trained_on
    assert replace(later, model_version="m-3") not in trained_on


def test_what_users_are_answered_depends_on_no_campaign(base: Predictor) -> None:
    colocation, solo = of_device("v100")
    asked = (table.assign(campaign="other") for table in (colocation, solo))
    named, other = examples_of(colocation, solo), examples_of(*asked)
    model, errors = base.fitted_.model, []
    network = model.networks[0]
    assert not np.allclose(*(model.predict_log_ratio(e)[1] for e in (named, other)), atol=1e-4)
    for examples in (named, other):
        fold = ExampleFold(Group("all", frozenset(), frozenset()), examples, examples)
        errors.append(left_out_errors(model, fold, solo, answered=True)["solo"])
    np.testing.assert_array_equal(*errors)
    assert HeldOut.of(model, named, answered=True).mae(network) == HeldOut.of(
        model, other, answered=True
    ).mae(network)


def test_sets_whose_member_had_ended_teach_nothing(base: Predictor) -> None:
    """Their ratios do not matter, because their memory shows that the members did not run together."""
    colocation, solo = of_device("p100")
    solo = solo.assign(memory_bytes=4e9)
    first = colocation.set_id == colocation.set_id.iloc[0]
    alone = colocation.assign(set_memory_bytes=np.where(first, 4e9, 8.1e9))
    wrong = alone.assign(throughput_ratio=alone.throughput_ratio.where(~first, 1.0))
    weights = [
        fine_tune(base, table, solo, QUICK).fitted_.model.networks[0].slow.weight for table in (alone, wrong)
    ]
    assert torch.equal(*weights)
