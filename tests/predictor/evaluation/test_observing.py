"""Scoring a model on architectures new to it, after some of their sets were observed."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from predictor.evaluation import observing
from predictor.evaluation.observing import evaluate_observing, new_to
from predictor.examples.examples import examples_of
from predictor.predictor import Predictor
from profiling.errors import InputError


@pytest.fixture
def forgetful(predictor: Predictor) -> Predictor:
    """The predictor, as if it had been trained on no set with alpha."""
    fitted = predictor.fitted_
    known = tuple(a for a in fitted.manifest.architectures if a != "alpha")
    other = Predictor(predictor.network, predictor.training, predictor.graph_source, "forgetful")
    other._take(replace(fitted, manifest=replace(fitted.manifest, architectures=known, set_ids=())))
    return other


@pytest.mark.parametrize("probes", ["random", "chosen"])
def test_observed_sets_are_not_scored(
    forgetful: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame], probes: str
) -> None:
    nothing, some = (evaluate_observing(forgetful, *measured, observe, probes) for observe in (0, 2))
    assert nothing["architectures"] == some["architectures"] == ["alpha"]
    assert nothing["observed_sets"] == 0 < some["observed_sets"]
    assert nothing["metrics"]["mape_percent"] == pytest.approx(nothing["before"]["mape_percent"])
    assert some["metrics"]["n"] < nothing["metrics"]["n"]
    assert some["metrics"]["n"] == some["by_model"]["alpha"]["before"]["n"]


def test_too_many_observed_sets_are_refused_with_the_architectures(
    forgetful: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    with pytest.raises(
        InputError, match=r"left to score: expected sets with alpha beyond .*, got \d+, all observed"
    ):
        evaluate_observing(forgetful, *measured, 1_000)


def test_rows_are_those_of_the_figures(
    forgetful: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    parts: list[pd.DataFrame] = []
    metrics = evaluate_observing(forgetful, *measured, 2, rows=parts.append)["metrics"]
    rows = pd.concat(parts)
    assert len(rows) == metrics["n"]
    assert set(rows["new"]) == {"alpha"}
    apart = (rows["predicted"] / rows["measured"] - 1).abs()
    assert 100 * apart.mean() == pytest.approx(metrics["mape_percent"])
    assert rows["measured"].between(rows["lower"], rows["upper"]).mean() == metrics["coverage_90"]


def test_nothing_new_is_refused(predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    with pytest.raises(InputError, match=r"every architecture.* got only sets that it was trained on"):
        evaluate_observing(predictor, *measured, 1)
    colocation, solo = measured
    again = colocation[colocation.device == "v100"].assign(set_id="again/" + colocation.set_id)
    with pytest.raises(InputError, match=r"every architecture.* got alpha, beta, .*on v100"):
        evaluate_observing(predictor, again, solo, 1)
    with pytest.raises(InputError, match="observe"):
        evaluate_observing(predictor, *measured, -1)
    with pytest.raises(InputError, match="choose"):
        evaluate_observing(predictor, *measured, 1, "guessed")


def test_new_architectures_come_before_new_devices(
    predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    examples, manifest = examples_of(*measured), replace(predictor.fitted_.manifest, set_ids=())
    without = replace(manifest, architectures=tuple(a for a in manifest.architectures if a != "alpha"))
    on_k80 = replace(manifest.coverage, devices=("k80", "p100"))
    assert new_to(without, examples)[1:] == (["alpha"], "architecture")
    assert new_to(replace(without, coverage=on_k80), examples)[1:] == (["alpha"], "architecture")
    new = new_to(replace(manifest, coverage=on_k80), examples)
    assert new.what == "architecture on its device"
    assert set(new.examples.devices) == set(examples.devices) - {"p100"}


def test_networks_trained_elsewhere_are_new_on_a_device(
    predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    fitted = predictor.fitted_
    coverage = replace(fitted.manifest.coverage, devices=("k80",))
    other = Predictor(predictor.network, predictor.training, predictor.graph_source, "elsewhere")
    other._take(replace(fitted, manifest=replace(fitted.manifest, coverage=coverage, set_ids=())))
    result = evaluate_observing(other, *measured, 1)
    assert (result["new"], result["left_out"]) == ("architecture on its device", 0)
    assert set(result["architectures"]) == set(measured[0]["architecture"])


def test_many_rows_are_taken_by_campaign_and_device(
    forgetful: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = evaluate_observing(forgetful, *measured, 0)
    monkeypatch.setattr(observing, "MOST_TOGETHER", 1)
    apart = evaluate_observing(forgetful, *measured, 0)
    assert apart["architectures"] == nothing["architectures"] == ["alpha"]
    for figure in ("n", "mape_percent"):
        assert apart["metrics"][figure] == pytest.approx(nothing["metrics"][figure])
    assert evaluate_observing(forgetful, *measured, 1)["observed_sets"] > 0


def test_learned_sets_are_counted(predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    fitted = predictor.fitted_
    colocation, solo = measured
    elsewhere = colocation[colocation.device == "p100"].assign(set_id=lambda rows: "again/" + rows.set_id)
    on_v100 = colocation[colocation.device == "v100"]
    coverage = replace(fitted.manifest.coverage, devices=("v100",))
    other = Predictor(predictor.network, predictor.training, predictor.graph_source, "elsewhere")
    other._take(replace(fitted, manifest=replace(fitted.manifest, coverage=coverage)))
    both = pd.concat([on_v100, elsewhere], ignore_index=True)
    assert evaluate_observing(other, both, solo, 0)["left_out"] == on_v100.set_id.nunique()
