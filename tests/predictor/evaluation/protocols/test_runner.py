from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from datasets.tables import make_table
from models.baselines import AdditivePredictor, ConstantPredictor
from predictor.evaluation.protocols.catalogue import PROTOCOLS, Protocol, get_protocol, make_trial
from predictor.evaluation.protocols.registry import Contender, contenders, register
from predictor.evaluation.protocols.report import earlier_results, make_report, markdown, table, write_report
from predictor.evaluation.protocols.runner import collect, make_plan, run_missing
from profiling.errors import ConflictError, InputError, UnknownNameError
from profiling.files import read_json, write_json
from tests.models.baselines.test_baselines import SOLO, TRAIN

TABLES = {"colocation": TRAIN, "solo": SOLO}
MINE = Protocol("mine-by-model", "a model never seen", ("mine-2026-01",), "by-model")


class Spy:
    """Records its inputs."""

    seen: ClassVar[list[tuple[Bundle, Bundle]]] = []

    def fit(self, train: Bundle, seed: int) -> None:
        self.train = train

    def predict(self, test: Bundle) -> np.ndarray:
        Spy.seen.append((self.train, test))
        return np.full(len(test.rows), 0.7)

    def predict_interval(self, test: Bundle) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(test.rows), 0.0), np.full(len(test.rows), 1.0)


class Silent(Spy):
    def predict(self, test: Bundle) -> np.ndarray:
        return np.full(len(test.rows), np.nan)


class Unable(Spy):
    def fit(self, train: Bundle, seed: int) -> None:
        raise InputError("no such feature")


CONSTANT = Contender("constant", ConstantPredictor)
ADDITIVE = Contender("additive", AdditivePredictor, uses_solo=True)


def run(folder: Path, *who: Contender, protocol: Protocol = MINE, seeds: int = 1) -> dict[str, Any]:
    plan = make_plan(make_trial(protocol, TABLES), who, range(seeds), folder)
    run_missing(plan)
    return collect(plan, resamples=50)


def test_all_named_protocols_exist() -> None:
    wanted = [
        "lucid-by-pair",
        "lucid-by-model",
        "gavel2020-by-pair",
        "gavel2020-by-model",
        "gavel2019-by-model",
        "gavel-by-device",
        "all-by-model",
        "lucid-by-model-graph-only",
        "lucid-memory-by-model",
        "lucid-utilization-by-model",
        "solo-by-model",
        "lucid-zero-shot",
    ]
    assert set(wanted) <= set(PROTOCOLS)
    names = [c.name for c in contenders()]
    assert {"constant", "additive", "trees-identity", "trees-solo", "shipped"} <= set(names)


def test_a_left_out_model_is_absent_from_training(tmp_path: Path) -> None:
    Spy.seen.clear()
    result = run(tmp_path, Contender("spy", Spy))
    assert len(Spy.seen) == 4
    for train, test in Spy.seen:
        held_out = set(test.colocation["architecture"]) - set(train.colocation["architecture"])
        assert len(held_out) == 1
        assert not held_out & set(train.solo["architecture"])
        assert held_out <= set(test.solo["architecture"])
        assert test.colocation["throughput_ratio"].isna().all()
        assert test.colocation["set_utilization_ratio"].isna().all()
    assert result["spy"]["metrics"]["coverage_90"] == 1


def test_exact_predictions_have_no_error_and_figures_are_pooled(tmp_path: Path) -> None:
    result = run(tmp_path, CONSTANT, ADDITIVE, seeds=2)
    assert result["additive"]["metrics"]["mape_percent"] == pytest.approx(0, abs=1e-9)
    assert result["constant"]["metrics"]["mape_percent"] > 1
    folds = make_trial(MINE, TABLES).folds
    members = sum(len(TRAIN[TRAIN["set_id"].isin(set(f.test_set_ids))]) for f in folds)
    assert result["constant"]["metrics"]["n"] == 2 * members
    assert set(result["constant"]["by_model"]) == {"a-net", "b-net", "c-net", "d-net"}
    own = sum(part["n"] for part in result["constant"]["by_model"].values())
    assert own == result["constant"]["held_out"]["n"] == 2 * len(TRAIN)


def test_an_interrupted_run_resumes_and_changed_inputs_run_again(tmp_path: Path) -> None:
    trial = make_trial(MINE, TABLES)
    plan = make_plan(trial, [CONSTANT], [0], tmp_path)

    class Stop(Exception):
        pass

    stopped = []

    def stop(cell: Any) -> None:
        stopped.append(cell)
        if len(stopped) == 2:
            raise Stop

    with pytest.raises(Stop):
        run_missing(plan, stop)
    assert len(make_plan(trial, [CONSTANT], [0], tmp_path).missing) == 2
    run_missing(make_plan(trial, [CONSTANT], [0], tmp_path))
    assert not make_plan(trial, [CONSTANT], [0], tmp_path).missing
    newer = Contender("constant", ConstantPredictor, version="2")
    assert len(make_plan(trial, [newer], [0], tmp_path).missing) == 4
    other = TABLES | {"colocation": TRAIN.assign(throughput_ratio=TRAIN["throughput_ratio"] * 0.99)}
    assert len(make_plan(make_trial(MINE, other), [CONSTANT], [0], tmp_path).missing) == 4


def test_a_failing_predictor_is_reported_and_others_still_run(tmp_path: Path) -> None:
    result = run(tmp_path, Contender("silent", Silent), Contender("unable", Unable), CONSTANT)
    assert "no prediction for" in result["silent"]["not_applicable"]
    assert "no such feature" in result["unable"]["not_applicable"]
    assert "metrics" in result["constant"]


def test_participants_of_a_protocol() -> None:
    graph_only = get_protocol("lucid-by-model-graph-only")
    assert not graph_only.admits(ADDITIVE)
    assert graph_only.admits(CONSTANT)
    assert not MINE.admits(Contender("gat", Spy, protocols=frozenset({"lucid-by-model"})))
    shipped = Contender("shipped", Spy, pretrained=True)
    assert get_protocol("lucid-zero-shot").admits(shipped)
    assert not MINE.admits(shipped)


def test_graph_only_protocols_hide_solo_runs() -> None:
    protocol = Protocol("g", "graph only", ("mine-2026-01",), "by-model", with_solo=False)
    trial = make_trial(protocol, TABLES)
    for side in trial.bundles(trial.folds[0]):
        assert len(side.solo) == 0
        assert side.colocation["solo_step_time_s"].isna().all()


def test_solo_times_of_left_out_models_are_predicted(tmp_path: Path) -> None:
    protocol = Protocol("s", "solo", (), "by-model", target="solo_step_time_s", with_solo=False)
    result = run(tmp_path, CONSTANT, protocol=protocol)
    assert result["constant"]["metrics"]["n"] == len(SOLO)


def test_zero_shot_trains_on_shippable_rows_only() -> None:
    lucid = TRAIN.assign(
        source="lucid", campaign="lucid", set_id="lucid/" + TRAIN["set_id"], licence="LicenseRef-S-Lab-1.0"
    )
    sia = TRAIN.assign(source="sia", campaign="other", set_id="sia/" + TRAIN["set_id"])
    gavel = TRAIN.assign(source="gavel", campaign="gavel-2020", set_id="gavel/" + TRAIN["set_id"])
    tables = {"colocation": pd.concat([lucid, sia, gavel], ignore_index=True), "solo": SOLO}
    trial = make_trial(get_protocol("lucid-zero-shot"), tables)
    train, test = trial.bundles(trial.folds[0])
    assert set(train.colocation["source"]) == {"gavel"}
    assert set(test.colocation["source"]) == {"lucid"}


def test_missing_data_error_names_what_to_import() -> None:
    with pytest.raises(InputError, match="cotenant data import gavel"):
        make_trial(get_protocol("gavel2020-by-model"), TABLES)
    with pytest.raises(InputError, match="no rows"):
        make_trial(get_protocol("all-by-model"), {"colocation": make_table("colocation", []), "solo": SOLO})
    with pytest.raises(UnknownNameError, match="lucid-by-pair"):
        get_protocol("lucid")


def test_registry_refuses_duplicate_names() -> None:
    contenders()
    with pytest.raises(ConflictError):
        register(Contender("constant", Spy))
    of_partial = next(known for known in contenders() if isinstance(known.make, partial))
    register(of_partial)
    with pytest.raises(ConflictError, match=of_partial.name):
        register(Contender(of_partial.name, partial(Spy)))
    with pytest.raises(UnknownNameError, match="trees-solo"):
        contenders(["trees-sol"])


def test_report_is_complete(tmp_path: Path) -> None:
    plan = make_plan(
        make_trial(MINE, TABLES), [CONSTANT, ADDITIVE, Contender("silent", Silent)], [0], tmp_path
    )
    run_missing(plan)
    report = make_report(plan, collect(plan, resamples=20), "cotenant benchmark run mine")
    files = write_report(plan, report)
    assert all(path.is_file() for path in files)
    assert [row[0] for row in table(report)] == ["additive", "constant"]
    text = markdown(report)
    assert "| additive | 0.0 |" in text
    assert "silent: not applicable" in text
    assert "| a-net |" in text


def test_results_of_other_predictors_are_kept(tmp_path: Path) -> None:
    trial, mean = make_trial(MINE, TABLES), contenders(["constant"])[0]
    first = make_plan(trial, [mean, ADDITIVE], (0,), tmp_path)
    run_missing(first)
    write_report(first, make_report(first, collect(first, resamples=20), "first"))
    second = make_plan(trial, [ADDITIVE], (0,), tmp_path)
    assert set(earlier_results(second)) == {"constant"}
    both = collect(second, resamples=20) | earlier_results(second)
    write_report(second, make_report(second, both, "second"))
    stored = read_json(tmp_path / "results.json")
    assert set(stored["predictors"]) == {"constant", "additive"}
    assert stored["command"] == "second"
    assert stored["predictors"]["constant"]["run"]["command"] == "first"
    assert "run" not in stored["predictors"]["additive"]
    assert "* constant (1 seed(s)): `first`, " in markdown(stored)
    assert earlier_results(second)["constant"]["run"]["command"] == "first"
    changed = read_json(tmp_path / "results.json")
    changed["predictors"]["constant"]["version"] = "another"
    write_json(tmp_path / "results.json", changed)
    assert earlier_results(second) == {}
    changed["predictors"]["constant"]["version"] = mean.current_version
    write_json(tmp_path / "results.json", changed | {"sets": 1})
    assert earlier_results(second) == {}
    write_json(tmp_path / "results.json", changed)
    assert set(earlier_results(second)) == {"constant"}
    other = trial.frame.assign(throughput_ratio=trial.frame["throughput_ratio"] / 2)  # as many, but others
    third = make_plan(replace(trial, frame=other), [ADDITIVE], (0,), tmp_path)
    assert earlier_results(third) == {}
    del changed["fingerprint"]
    write_json(tmp_path / "results.json", changed)
    assert set(earlier_results(third)) == {"constant"}


def test_other_related_rows_are_learned_from_again(tmp_path: Path) -> None:
    trial = make_trial(MINE, TABLES)
    with_more = replace(trial, related=trial.frame)
    run_missing(make_plan(with_more, [CONSTANT], (0,), tmp_path))
    assert not make_plan(with_more, [CONSTANT], (0,), tmp_path).missing
    fewer = replace(trial, related=trial.frame.iloc[1:])
    assert make_plan(fewer, [CONSTANT], (0,), tmp_path).missing


def test_results_of_tables_without_the_disturbed_flag_stay_valid(tmp_path: Path) -> None:
    trial = make_trial(MINE, TABLES)
    flag, frame = "disturbed", trial.frame
    without = replace(trial, frame=frame.drop(columns=flag), solo=trial.solo.drop(columns=flag))
    run_missing(make_plan(without, [CONSTANT], (0,), tmp_path))
    assert not make_plan(trial, [CONSTANT], (0,), tmp_path).missing
