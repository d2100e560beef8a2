"""Few-shot protocols on synthetic sets whose slowdown is a product of the members' properties."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from predictor.evaluation.protocols.few_shot import neural_process
from predictor.evaluation.protocols.few_shot.catalogue import LEARNING_CURVES
from predictor.evaluation.protocols.few_shot.contenders import LEARNERS
from predictor.evaluation.protocols.few_shot.learners import Fold, RefittedTrees
from predictor.evaluation.protocols.few_shot.neural_process import NeuralProcessConfig
from predictor.evaluation.protocols.few_shot.orders import chosen_orders, devices_of, random_orders
from predictor.evaluation.protocols.few_shot.page import of_sets
from predictor.evaluation.protocols.few_shot.processes import Averaged, PosteriorLearner, ProcessLearner
from predictor.evaluation.protocols.few_shot.runner import figures, resident_sets, run
from predictor.examples.examples import Examples
from predictor.examples.featurizer import Featurizer
from profiling.errors import InputError
from profiling.workload import SoloProfile, Workload
from tests.predictor.synthetic import graph_source, tables

SUFFERS = {"alpha": 1.0, "beta": 0.5, "gamma": 2.0}


def examples() -> Examples:
    jobs = [
        Workload(name, batch, solo=SoloProfile(0.01 * batch)) for name in SUFFERS for batch in (8, 16, 32)
    ]
    pairs = [(a, b) for k, a in enumerate(jobs) for b in jobs[k:]]
    members = [w for pair in pairs for w in pair]
    others = [w for a, b in pairs for w in (b, a)]
    ratio = [
        1 / (1 + 0.3 * SUFFERS[w.model] * (o.solo.step_time_s or 0) / 0.16)
        for w, o in zip(members, others, strict=True)
    ]
    count = len(members)
    return Examples(
        tuple(members), ("v100",) * count, tuple(w.model for w in members), tuple(f"s{k:03}" for k in range(len(pairs))),
        np.repeat(np.arange(len(pairs)), 2), ("time-slice",) * count, ("synthetic",) * count, np.array(ratio),
        np.zeros(count, bool), np.full(len(pairs), np.nan), np.full(len(pairs), np.nan),
    )  # fmt: skip


def test_observed_sets_lower_the_error_most_for_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neural_process, "NeuralProcessConfig", partial(NeuralProcessConfig, episodes=5))
    monkeypatch.setattr(RefittedTrees, "trees", 10)
    results = figures(run(examples(), Featurizer(graph_source), counts=(0, 2, 6), seeds=(0,)))
    assert tuple(results) == LEARNERS
    process = results["process"]["random"]
    errors = [process[k]["mape_percent"] for k in ("0", "2", "6")]
    assert errors[2] < errors[1] < errors[0]
    assert process["0"]["n"] > process["6"]["n"], "what was observed is not scored"
    for name in ("uncorrected", "factor-per-job"):
        assert errors[2] < results[name]["random"]["6"]["mape_percent"]


def test_sets_are_drawn_once_regardless_of_outcome() -> None:
    made = examples()
    rounds = random_orders(made, 5, seed=0)
    rows = np.concatenate(rounds)
    assert len(set(rows.tolist())) == len(rows) == 10
    assert [r.tolist() for r in rounds] == [r.tolist() for r in random_orders(made, 5, seed=0)]
    (sets,) = devices_of(made).values()
    assert len(sets) == len(made.set_ids)


def test_the_first_chosen_set_does_not_depend_on_what_was_measured() -> None:
    made = examples()
    held = [s for s, k in zip(made.set_ids, range(len(made.set_ids)), strict=True) if k % 3 == 0]
    rest = [s for s in made.set_ids if s not in held]
    first = []
    for factor in (1.0, 0.5):
        train, test = made.subset(rest), made.subset(held)
        test.ratio[:] *= factor
        learner = ProcessLearner(Fold.of(train, test, Featurizer(graph_source)))
        first.append(chosen_orders(test, 1, learner)[0].tolist())
    assert first[0] == first[1]


def test_tables_without_the_campaign_are_refused() -> None:
    with pytest.raises(InputError, match="campaign"):
        resident_sets(*tables(), ("lucid",))


def test_markdown_report() -> None:
    metrics = {"mape_percent": 5.0, "r2": 0.5, "coverage_90": 0.9}
    result = {
        "protocol": "lucid-few-shot", "about": "a model", "sets": 1, "points": 2, "seeds": [0], "command": "c", "date": "d",
        "machine": {}, "counts": [0, 1], "learners": {"process": {"random": {"0": metrics, "1": metrics}}},
    }  # fmt: skip
    assert "| process | random | 5.0 (0.50) | 5.0 (0.50) |" in of_sets(result)
    assert set(LEARNING_CURVES) == {
        *(f"{name}-few-shot" for name in ("lucid", "gavel2019", "gavel2020", "miso", "solo"))
    }


def fold_of_thirds() -> Fold:
    """Every third set is tested."""
    made = examples()
    held = [s for k, s in enumerate(made.set_ids) if k % 3 == 0]
    rest = [s for s in made.set_ids if s not in held]
    return Fold.of(made.subset(rest), made.subset(held), Featurizer(graph_source))


def test_a_posterior_starts_at_the_prediction_and_follows_observations() -> None:
    fold = fold_of_thirds()
    test = fold.test
    measured = -np.log(test.ratio)
    learner = PosteriorLearner(fold, 1.5 * measured, 1.5 * measured)
    nothing = np.zeros(0, np.int64)
    assert learner.answer(nothing).log_ratio == pytest.approx(-1.5 * measured)
    seen = np.flatnonzero(test.set_index < 4)
    answer = learner.answer(seen)
    error, before = (np.abs(a + measured) for a in (answer.log_ratio, learner.answer(nothing).log_ratio))
    assert error[seen].mean() < 0.4 * before[seen].mean()
    unseen = np.setdiff1d(np.arange(len(measured)), seen)
    assert error[unseen].mean() < before[unseen].mean(), "an error of the same sign tells of the others"
    assert answer.lower is not None
    assert answer.upper is not None
    assert (answer.lower < answer.log_ratio).all()
    assert (answer.log_ratio < answer.upper).all()


def test_a_posterior_learns_the_weight_of_its_networks() -> None:
    fold = fold_of_thirds()
    test = fold.test
    measured = -np.log(test.ratio)
    seen, unseen = (np.flatnonzero(side) for side in (test.set_index < 6, test.set_index >= 6))
    # Alternately too high and too low, which another weight explains, and no error of a job.
    expected = measured * np.where(np.arange(len(measured)) % 2, 1.4, 0.6)
    without, learned = (
        np.abs(PosteriorLearner(fold, expected, of_networks).answer(seen).log_ratio + measured)[unseen].mean()
        for of_networks in (expected, 2 * measured - expected)
    )
    assert learned < 0.5 * without


def test_the_mean_of_two_learners_lies_between_them() -> None:
    fold = fold_of_thirds()
    test = fold.test
    levels = (np.full(len(test.ratio), level) for level in (0.2, 0.4))
    low, high = (PosteriorLearner(fold, level, level) for level in levels)
    answer = Averaged(low, high).answer(np.zeros(0, np.int64))
    assert answer.log_ratio == pytest.approx(-0.3)
    assert answer.lower is not None
    assert (answer.lower < -0.3).all()
