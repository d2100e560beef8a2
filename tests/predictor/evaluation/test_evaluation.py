from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from predictor.evaluation.answered import answered_log_ratio
from predictor.evaluation.evaluation import FoldResult, _half_width, evaluate
from predictor.examples.cross_fit import sets_with
from predictor.examples.examples import examples_of
from predictor.predictor import Predictor
from profiling.errors import InputError, UnavailableError
from profiling.workload import ColocationSet
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]
# What `cotenant evaluate` promises; there may be more.
METRICS = {"n", "mape_percent", "mae", "rmse", "r2", "spearman", "coverage_90", "median_width"}


def renamed(measured: Tables) -> Tables:
    """The same rows, disguised as ones that the model was not trained on."""
    return measured[0].assign(set_id=measured[0].set_id + "-later"), measured[1]


def test_scored_without_refitting(predictor: Predictor, measured: Tables) -> None:
    colocation, solo = renamed(measured)
    result = evaluate(predictor, colocation, solo)
    assert (result["split"], result["left_out"]) == ("none", 0)
    assert set(result["metrics"]) >= METRICS
    assert result["metrics"]["n"] == len(colocation)
    assert set(result["by_model"]) == {"alpha", "beta", "gamma", "delta"}
    assert set(result["by_device"]) == {"v100", "p100"}
    assert sum(part["n"] for part in result["by_model"].values()) == len(colocation)
    assert result["targets"]["memory"]["mape_percent"] < 1
    assert result["targets"]["utilization"]["mae"] < 0.03
    assert predictor.score(colocation, solo) == result["metrics"]["r2"]
    for nothing in (colocation.iloc[:0], colocation.assign(is_target=False)):
        with pytest.raises(InputError, match="no measured throughput to score"):
            predictor.score(nothing, solo)


def test_rows_are_scored_by_the_served_prediction(predictor: Predictor, measured: Tables) -> None:
    colocation, solo = measured
    pairs = colocation[colocation.device == "v100"]
    first = str(pairs.set_id.iloc[0])
    own = pairs[pairs.set_id == first]
    third = pairs[(pairs.set_id != first) & ~pairs.workload.isin(own.workload)].iloc[:1]
    # A campaign that the model has not seen, as that of a user's question.
    named = {"set_id": "triple", "campaign": "nobody's"}
    triple = pd.concat([own, third.assign(member=2)], ignore_index=True).assign(**named)
    examples = examples_of(triple, solo)
    ratio, slow = answered_log_ratio(predictor, examples)
    asked = ColocationSet("v100", tuple(examples.workloads), examples.mode[0])
    np.testing.assert_allclose(np.exp(slow), predictor.predict_arrays([asked]).slowdown[0], rtol=1e-4)
    plain_ratio, plain = predictor.fitted_.model.predict_log_ratio(examples)
    np.testing.assert_allclose(plain_ratio - ratio, slow - plain, atol=1e-6)


def test_training_sets_are_left_out(predictor: Predictor, measured: Tables) -> None:
    colocation, solo = measured
    later = colocation.assign(
        set_id=colocation.set_id.where(colocation.device == "p100", colocation.set_id + "-x")
    )
    result = evaluate(predictor, later, solo)
    assert result["left_out"] == colocation[colocation.device == "p100"].set_id.nunique()
    assert set(result["by_device"]) == {"v100"}
    with pytest.raises(InputError, match="no sets left to score"):
        evaluate(predictor, colocation, solo)


def test_censored_rows_are_not_scored(predictor: Predictor, measured: Tables) -> None:
    colocation, solo = renamed(measured)
    censored = colocation.assign(censored=colocation.member == 1)
    assert evaluate(predictor, censored, solo)["metrics"]["n"] == (colocation.member == 0).sum()
    with pytest.raises(InputError, match="no measured throughput"):
        evaluate(predictor, colocation.assign(censored=True), solo)


@pytest.fixture(scope="module")
def quick(measured: Tables) -> tuple[Predictor, Tables]:
    """A configuration that fits in no time, and the sets of one device."""
    colocation, solo = measured
    few = colocation[colocation.device == "v100"], solo[solo.device == "v100"]
    training = replace(TRAINING, epochs=2, encoder_steps=1)
    return Predictor(NETWORK, training, graph_source).fit(*few), few


def test_refitted_by_model(quick: tuple[Predictor, Tables]) -> None:
    predictor, (colocation, solo) = quick
    result = evaluate(predictor, colocation, solo, "by-model")
    assert (result["split"], result["folds"]) == ("by-model", 4)
    assert result["model_version"] == predictor.version
    assert set(result["metrics"]) >= METRICS
    # A pair of two models is scored with either of them left out.
    mixed = colocation.groupby("set_id").architecture.nunique().gt(1).sum()
    assert result["metrics"]["n"] == len(colocation) + 2 * mixed
    # By model, a row counts with its own model left out.
    assert result["held_out"]["n"] == len(colocation)
    counts = colocation.architecture.value_counts().to_dict()
    assert {name: part["n"] for name, part in result["by_model"].items()} == counts


def test_intervals_are_not_calibrated_on_the_rows_that_they_are_for(
    quick: tuple[Predictor, Tables],
) -> None:
    colocation, solo = quick[1]
    examples = examples_of(colocation, solo)
    parts = []
    for name in ("alpha", "beta"):
        left_out = examples.subset(sorted(sets_with(examples, [name])))
        nothing = np.zeros(len(left_out.workloads))
        parts.append(FoldResult(left_out, nothing, nothing, {}, np.ones(len(nothing), dtype=bool)))
    first, second = parts
    shared = np.isin(second.examples.set_ids, first.examples.set_ids)[second.examples.set_index]
    assert 0 < shared.sum() < len(shared)
    half = _half_width([first, second], 0)
    for rows, same in ((shared, True), (~shared, False)):
        ratio = np.where(rows, second.examples.ratio / 9, second.examples.ratio)
        other = replace(second, examples=replace(second.examples, ratio=ratio))
        assert np.array_equal(_half_width([first, other], 0), half) == same


def test_a_model_in_every_set_is_not_held_out(quick: tuple[Predictor, Tables]) -> None:
    predictor, (colocation, solo) = quick
    with_alpha = colocation.groupby("set_id").architecture.transform(lambda names: "alpha" in set(names))
    mixed = colocation.groupby("set_id").architecture.transform("nunique") > 1
    with pytest.warns(UserWarning, match="alpha is in every set"):
        result = evaluate(predictor, colocation[with_alpha & mixed], solo, "by-model")
    assert result["folds"] == 3


def test_an_empty_table_is_named(predictor: Predictor, measured: Tables) -> None:
    colocation, solo = measured
    for split in ("none", "by-model"):
        with pytest.raises(InputError, match="the colocation table has no rows"):
            evaluate(predictor, colocation[:0], solo, split)


def test_refits_do_not_reuse_weights(quick: tuple[Predictor, Tables], predictor: Predictor) -> None:
    refitted, few = quick
    other = Predictor.of(predictor.fitted_, "other", NETWORK, refitted.training or TRAINING)
    two = tuple(t[t.architecture.isin(["alpha", "beta"])] for t in few)
    first, second = (evaluate(p, two[0], two[1], "by-model")["metrics"] for p in (refitted, other))
    assert first == second


def test_unknown_split_and_unfitted(predictor: Predictor, measured: Tables) -> None:
    with pytest.raises(InputError, match="by-model"):
        evaluate(predictor, *measured, "by-moon")
    with pytest.raises(UnavailableError):
        evaluate(Predictor(graph_source=graph_source), *measured)
