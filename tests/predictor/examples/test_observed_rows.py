"""Observations as rows for the next training."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from predictor.examples.observations import Observation, set_id_of
from predictor.examples.observed_rows import training_tables
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.examples.test_observations import PAIR
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source


def test_member_order_does_not_matter() -> None:
    turned = ColocationSet(PAIR.device, PAIR.workloads[::-1], PAIR.sharing)
    assert set_id_of(turned) == set_id_of(PAIR)
    alone = [Observation(ColocationSet("v100", (w,)), 0, 0.02) for w in PAIR.workloads]
    once, _ = training_tables([*alone, Observation(PAIR, 1, 0.04), Observation(PAIR, 0, 0.03)])
    mixed, _ = training_tables([*alone, Observation(turned, 0, 0.04), Observation(PAIR, 0, 0.03)])
    pd.testing.assert_frame_equal(once, mixed)


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("resnet18-cifar", "batch_size=128,optimizer=momentum"),
        ("torchvision/resnet50", "batch_size=32,image_size=224,optimizer=sgd"),
    ],
)
def test_a_solo_step_time_counts_for_every_spelling(name: str, defaults: str) -> None:
    plain, full = map(Workload.parse, (name, f"{name}:{defaults}"))
    alone = Observation(ColocationSet("v100", (plain,)), 0, 0.02)
    together, _ = training_tables([alone, Observation(ColocationSet("v100", (full, full)), 0, 0.04)])
    assert together.solo_step_time_s.tolist() == [0.02, 0.02]
    assert together.workload.tolist() == [str(plain)] * 2


@pytest.mark.parametrize(
    ("name", "option"),
    [("resnet18-cifar", "batch_size=128,optimizer=momentum"), ("graph:" + "0" * 64, "batch_size=8")],
)
def test_two_spellings_of_a_job_are_one_row(name: str, option: str) -> None:
    plain, full, beta = map(Workload.parse, (name, f"{name}:{option}", "beta:batch_size=32,step_time_s=0.02"))
    observations = [
        Observation(ColocationSet("v100", jobs), jobs.index(beta), step)
        for jobs, step in (((plain, beta), 0.03), ((beta, full), 0.04), ((full, beta), 0.09))
    ]
    observations += [
        Observation(ColocationSet("v100", (w,)), 0, step) for w, step in ((plain, 0.02), (full, 0.03))
    ]
    together, solo = training_tables(observations)
    target = together[together.is_target]
    assert target.step_time_s.tolist() == [0.04]
    assert (
        together.set_id.nunique()
        == 1
        == together.set_id.isin({set_id_of(o.colocation_set) for o in observations}).mean()
    )
    assert solo.step_time_s.tolist() == pytest.approx([0.025, 0.02])


def test_training_rows(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    alone = ColocationSet("v100", (Workload("alpha", 32),))
    other = ColocationSet("p100", (Workload("gamma"), Workload("delta")))
    colocation, solo = training_tables(
        [
            Observation(PAIR, 1, 0.04),
            Observation(PAIR, 1, 0.06),
            Observation(PAIR, 1, 0.05),
            Observation(PAIR, 0, 0.03),
            Observation(alone, 0, 0.02),
            Observation(other, 0, 9.0),
        ]
    )
    assert colocation.architecture.tolist() == ["alpha", "beta"]
    assert colocation.throughput_ratio.tolist() == pytest.approx([0.02 / 0.03, 0.03 / 0.05])
    assert colocation.is_target.all()
    assert dict(zip(solo.architecture, solo.step_time_s, strict=True)) == {"alpha": 0.02, "beta": 0.03}
    # They are rows like any other.
    training = replace(TRAINING, epochs=1, encoder_steps=1)
    both = [pd.concat([a, b], ignore_index=True) for a, b in zip(measured, (colocation, solo), strict=True)]
    few = [t[t.device == "v100"] for t in both]
    fitted = Predictor(NETWORK, training, graph_source).fit(*few)
    assert "feedback" in fitted.fitted_.manifest.sources
    partly, _ = training_tables([Observation(PAIR, 1, 0.04)])
    assert partly.is_target.tolist() == [False, True]
    assert partly.throughput_ratio[1] == pytest.approx(0.75)


def test_sets_without_a_known_solo_step_time_are_counted() -> None:
    other = ColocationSet("v100", (Workload("beta"), Workload("gamma")))
    alone = Observation(ColocationSet("v100", (Workload("alpha", 32),)), 0, 0.02)
    with pytest.warns(UserWarning, match="no rows of 1 of 2 observed sets"):
        colocation, _ = training_tables([alone, Observation(PAIR, 0, 0.03), Observation(other, 0, 0.04)])
    assert colocation.set_id.nunique() == 1


def test_memory_and_utilisation_of_a_job_alone() -> None:
    alone = ColocationSet("v100", (Workload("gamma"),))
    _, solo = training_tables([Observation(alone, 0, 0.5, 2e9, 0.4), Observation(alone, 0, 0.5)])
    assert solo[["step_time_s", "memory_bytes", "utilization_ratio"]].iloc[0].tolist() == [0.5, 2e9, 0.4]


@pytest.mark.parametrize("turned", [False, True])
def test_values_in_the_spec_take_precedence(turned: bool) -> None:
    plain, stated, other = map(
        Workload.parse, ("gamma", "gamma:step_time_s=0.03,memory_bytes=1e9", "gamma:step_time_s=0.05")
    )
    observations = [
        Observation(ColocationSet("v100", (plain,)), 0, 0.02, 2e9, 0.4),
        Observation(ColocationSet("v100", (stated,)), 0, 0.09, 9e9, 0.6),
        Observation(ColocationSet("v100", (stated, Workload("beta"))), 0, 0.12),
        Observation(ColocationSet("v100", (other, Workload("beta"))), 0, 0.1),
    ]
    together, solo = training_tables(observations[::-1] if turned else observations)
    (row,) = solo.to_dict("records")
    assert [row[name] for name in ("step_time_s", "memory_bytes", "utilization_ratio")] == [0.03, 1e9, 0.5]
    target = together[together.is_target].sort_values("solo_step_time_s")
    assert target.solo_step_time_s.tolist() == [0.03, 0.05], "its own SPEC's"
    assert target.throughput_ratio.tolist() == pytest.approx([0.25, 0.5])


def test_a_solo_run_on_a_slice_is_not_one_on_the_whole_card() -> None:
    job, beta = Workload("gamma"), Workload("beta")
    observations = [
        Observation(ColocationSet("a100", (job,)), 0, 0.02),
        Observation(ColocationSet("a100", (job,), "mig"), 0, 0.08),
        Observation(ColocationSet("a100:mig=3g", (job,), "mig"), 0, 0.04),
        Observation(ColocationSet("a100", (job, beta), "mig"), 0, 0.1),
        Observation(ColocationSet("a100", (job, beta), "mps"), 0, 0.1),
    ]
    together, solo = training_tables(observations)
    assert dict(zip(solo.device, solo.step_time_s, strict=True)) == {"a100": 0.02, "a100:mig=3g": 0.04}
    target = together[together.is_target]
    assert dict(zip(target.sharing, target.solo_step_time_s, strict=True)) == {"mig": 0.08, "mps": 0.02}
