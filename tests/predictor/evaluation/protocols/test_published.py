"""Protocols on published measurements: what each holds out, and that the baselines run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from datasets.splits import make_split
from datasets.tables import empty_table, make_table
from models.baselines.summary_trees import SummaryTreePredictor
from predictor.evaluation.protocols.catalogue import get_protocol, make_trial
from predictor.evaluation.protocols.features import per_step
from predictor.evaluation.protocols.graphs import GROUPS, graph_of, kind_times
from predictor.evaluation.protocols.protocol import Protocol, Trial
from predictor.evaluation.protocols.published import PROTOCOLS, share_cost
from predictor.evaluation.protocols.published.steps import SETTING
from predictor.evaluation.protocols.registry import contenders
from predictor.evaluation.protocols.runner import collect, make_plan, run_missing

NETWORKS = ("resnet18", "resnet50", "vgg11", "vgg16", "vit_tiny", "deit_small", "densenet121", "mnasnet0_5")
DEVICES = ("rtx-3090", "rtx-4090", "v100")


def source(name: str) -> dict[str, str]:
    return {"source": name, "campaign": name, "licence": "MIT", "origin": "measured"}


def steps(name: str, mode: str = "training", share: float = 1.0, collection: str = "timm") -> list[dict]:
    """A step takes as long as its multiply-adds, on devices each three times as fast as the one before."""
    rows = []
    for number, network in enumerate(NETWORKS):
        for speed, device in enumerate(DEVICES):
            for batch in (16, 32):
                options = f"batch_size={batch},mode={mode}" if mode != "training" else f"batch_size={batch}"
                options += f",sm_share_ratio={share}" if share < 1 else ""
                rows.append(
                    {
                        "device": device,
                        "workload": f"{collection}/{network}:{options}",
                        "architecture": f"{collection}/{network}",
                        "batch_size": batch,
                        "mode": mode,
                        "sm_share_ratio": share,
                        "gpus": 1,
                        "step_time_s": 1e-3 * batch * (number + 1) / 3.0**speed / share,
                        **source(name),
                    }
                )
    return rows


def workloads(name: str, collection: str = "timm") -> pd.DataFrame:
    rows = [
        {
            "workload": f"{collection}/{network}:batch_size={batch}",
            "architecture": f"{collection}/{network}",
            "batch_size": batch,
            "macs_per_sample": 1e9 * (number + 1),
            "activations_per_sample": 1e6 * (number + 1),
            "parameter_count": 10**6 * (number + 1),
            **source(name),
        }
        for number, network in enumerate(NETWORKS)
        for batch in (16, 32)
    ]
    return make_table("workloads", rows)


def trial(name: str, **tables: pd.DataFrame) -> Trial:
    return make_trial(get_protocol(name), tables)


def scores(trial: Trial, folder: Path, *names: str) -> dict[str, float]:
    plan = make_plan(trial, contenders(names), [0], folder)
    run_missing(plan)
    return {name: r["metrics"]["mape_percent"] for name, r in collect(plan, resamples=5).items()}


def sides(trial: Trial) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    return [tuple(bundle.frame for bundle in trial.bundles(fold)) for fold in trial.folds]  # type: ignore[misc]


def by_family_in_5() -> Protocol:
    return replace(
        get_protocol("timm-train-by-family"),
        folds=lambda rows, seed: make_split(rows, "by-family", seed, 5, "family"),
    )


def test_left_out_families_in_a_linear_world_are_predicted_exactly(tmp_path: Path) -> None:
    tables = {"solo": make_table("solo", steps("timm")), "workloads": workloads("timm")}
    linear_trial = make_trial(by_family_in_5(), tables)
    for train, test in sides(linear_trial):
        assert not set(train["family"]) & set(test["family"])
    assert {f for _, test in sides(linear_trial) for f in test["family"]} == {
        "resnet",
        "vgg",
        "vit",
        "densenet",
        "mnasnet",
    }
    result = scores(linear_trial, tmp_path, "constant", "linear", "roofline")
    assert result["linear"] == pytest.approx(0, abs=1e-3)
    assert result["linear"] < min(result["roofline"], result["constant"])
    train, test = linear_trial.bundles(linear_trial.folds[0])
    trees = SummaryTreePredictor(per_step, SETTING, trees=10).fit(train)
    errors = np.abs(trees.predict(test.without_targets()) / test.y - 1)
    assert errors.mean() < result["constant"] / 100


def test_related_rows_are_of_families_that_are_not_held_out() -> None:
    rows = steps("timm") + [r | {"campaign": "timm-pt113-cu117"} for r in steps("timm", "inference")]
    rows = [r | {"device": "rtx-3090"} for r in rows if r["device"] == DEVICES[0]]
    tables = {"solo": make_table("solo", rows), "workloads": workloads("timm")}
    related_trial = make_trial(by_family_in_5(), tables)
    assert set(related_trial.frame["mode"]) == {"training"}
    for fold in related_trial.folds:
        train, test = related_trial.bundles(fold)
        assert train.related is not None
        assert test.related is None
        assert set(train.related["mode"]) == {"inference"}
        assert set(train.related["family"]) == set(train.rows["family"])
        assert not set(train.related["family"]) & set(test.rows["family"])


def test_devices_and_the_largest_cells_are_left_out() -> None:
    tables = {"solo": make_table("solo", steps("lamikr")), "workloads": workloads("lamikr")}
    by_device = trial("lamikr-by-device", **tables)
    assert [f.name for f in by_device.folds] == sorted(DEVICES)
    for train, test in sides(by_device):
        assert not set(train["device"]) & set(test["device"])
    tables = {"solo": make_table("solo", steps("ecnas")), "workloads": workloads("ecnas")}
    (largest,) = sides(trial("ecnas-largest-fifth", **tables))
    assert set(largest[1]["architecture"]) == {"timm/densenet121", "timm/mnasnet0_5"}
    assert not set(largest[0]["architecture"]) & set(largest[1]["architecture"])


def test_shares_are_predicted_from_the_whole_device(tmp_path: Path) -> None:
    rows = steps("rapp", "inference") + steps("rapp", "inference", 0.5)
    share_trial = trial("rapp-by-model", solo=make_table("solo", rows))
    assert set(share_trial.frame["sm_share_ratio"]) == {0.5}
    result = scores(share_trial, tmp_path, "share-proportional", "share-unchanged", "share-others")
    assert result["share-proportional"] == pytest.approx(0, abs=1e-9)
    assert result["share-others"] == pytest.approx(0, abs=1e-9)
    assert result["share-unchanged"] == pytest.approx(50)


def test_trees_learn_the_cost_models_error_under_a_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_cost, "_EPOCHS", 20)  # a cost model that errs will do
    rows = steps("rapp", "inference", 1.0, "torchvision") + steps("rapp", "inference", 0.5, "torchvision")
    share_trial = trial("rapp-by-model", solo=make_table("solo", rows))
    share_trial = replace(share_trial, folds=share_trial.folds[:2])  # each fits networks of the cost model
    result = scores(share_trial, tmp_path, "share-cost-model", "share-cost-corrected")
    assert result["share-cost-corrected"] < 0.5 * result["share-cost-model"]


def test_evaluation_only_rows_are_never_trained_on() -> None:
    def rows(name: str) -> list[dict]:
        return [
            {
                "device": "rtx-3090",
                "workload": f"timm/{network}:batch_size=16",
                "architecture": f"timm/{network}",
                "batch_size": 16,
                "scope": "device",
                "memory_bytes": 1e9,
                **source(name),
            }
            for network in NETWORKS
        ]

    memory = make_table("memory", rows("schedtune") + rows("timm") + rows("gpumemnet"))
    memory_trial = trial("memory-by-model", memory=memory)
    scored = []
    for train, test in sides(memory_trial):
        assert "gpumemnet" not in set(train["source"])
        assert not set(train["family"]) & set(test["family"])
        scored.append(test)
    assert set(pd.concat(scored)["source"]) == {"schedtune", "timm", "gpumemnet"}


def mixes() -> pd.DataFrame:
    generator, rows = np.random.default_rng(0), []
    for number in range(60):
        members = generator.choice(len(NETWORKS), 1 + number % 7)
        for member, index in enumerate(members):
            for low in (0.14, 0.5):
                rows.append(
                    {
                        "set_id": f"miso/{number}",
                        "member": member,
                        "device": "a100",
                        "sharing": "mps",
                        "workload": f"keras/{NETWORKS[index]}:batch_size=16",
                        "architecture": f"keras/{NETWORKS[index]}",
                        "batch_size": 16,
                        "numerator_sm_share_ratio": 1.0,
                        "denominator_sm_share_ratio": low,
                        "log_step_time_ratio": 0.1 * len(members) + 0.01 * index,
                        **source("miso"),
                    }
                )
    return make_table("mixes", rows)


def test_mixes_by_size_and_combination(tmp_path: Path) -> None:
    tables = {"mixes": mixes(), "solo": empty_table("solo")}
    ((train, test),) = sides(trial("miso-by-size", **tables))
    assert set(train["members"]) == {2, 3}
    assert set(test["members"]) == {4, 5, 6, 7}
    assert set(test["denominator_sm_share_ratio"]) == {0.14}
    for fold in sides(trial("miso-random", **tables)):
        assert not set(fold[0]["jobs"]) & set(fold[1]["jobs"])
    result = scores(trial("miso-by-size", **tables), tmp_path, "constant", "additive-jobs")
    assert result["additive-jobs"] < result["constant"]
    for train, test in sides(trial("miso-by-model", **tables)):
        assert set(test["architecture"]) - set(train["architecture"])


def test_equal_processes_are_scored_once(tmp_path: Path) -> None:
    rows = [
        {
            "set_id": f"p/{network}/{n}",
            "member": member,
            "device": "a100-80gb:mig=4g",
            "sharing": "mps",
            "processes": n,
            "workload": f"torchvision/{network}:batch_size=16,mode=inference",
            "architecture": f"torchvision/{network}",
            "batch_size": 16,
            "mode": "inference",
            "throughput_ratio": 1.0 / n,
            **source("parvagpu"),
        }
        for network in NETWORKS
        for n in (2, 3)
        for member in range(n)
    ]
    parva_trial = trial("parvagpu-by-model", colocation=make_table("colocation", rows))
    points = sum(int(parva_trial.bundles(fold)[1].points.sum()) for fold in parva_trial.folds)
    assert points == 2 * len(NETWORKS)
    assert scores(parva_trial, tmp_path, "even-share")["even-share"] == pytest.approx(0, abs=1e-9)


def test_operators_on_a_left_out_device(tmp_path: Path) -> None:
    from models.baselines.operator_work import LAUNCH_S, operator_roofline_s

    generator, rows = np.random.default_rng(1), []
    for device in ("v100", "p100", "t4"):
        for size in generator.integers(5, 12, 40):
            side = 2 ** int(size)
            shape = {"kind": "matmul", "operator": "bmm", "b": 8, "m": side, "n": side, "k": side}
            rows.append(
                shape | {"device": device, "precision": "fp32", "latency_s": 1.0, **source("neusight")}
            )
    table = make_table("operators", rows)
    table["latency_s"] = 2 * operator_roofline_s(table) + LAUNCH_S
    operator_trial = trial("neusight-operators-by-device", operators=table)
    for train, test in sides(operator_trial):
        assert not set(train["device"]) & set(test["device"])
    result = scores(
        operator_trial,
        tmp_path,
        "constant",
        "operator-roofline",
        "operator-efficiency",
        "operator-trees",
        "operator-network",
        "operator-cost-model",
    )
    assert result["operator-cost-model"] < result["operator-roofline"]
    assert result["operator-trees"] < 10
    assert result["operator-network"] < result["constant"]
    assert result["operator-efficiency"] < 10 < result["operator-roofline"] < 50 < result["constant"]


def test_every_protocol_names_existing_predictors() -> None:
    known = {c.name for c in contenders()}
    for protocol in PROTOCOLS:
        assert set(protocol.contenders or ()) <= known
        assert sum(protocol.admits(c) for c in contenders()) > 1


def test_rooflines_by_kind_of_operator() -> None:
    specs = ("resnet18-cifar:batch_size=32", "resnet18-cifar:batch_size=64", "nobody/knows")
    solo = make_table(
        "solo",
        [
            {
                "device": "v100",
                "workload": spec,
                "architecture": spec.partition(":")[0],
                "batch_size": 64 if "64" in spec else 32,
                "step_time_s": 0.1,
                "gpus": 1,
                **source("mine"),
            }
            for spec in specs
        ],
    )
    times = kind_times(Bundle("solo_step_time_s", solo, solo.iloc[:0]))
    assert list(times) == ["roofline", *GROUPS]
    graph = graph_of(specs[0])
    assert graph is not None
    assert times["kernels"].iloc[0] == graph.kernel_count
    parts = times.drop(columns=["roofline", "kernels"]).sum(axis=1)
    np.testing.assert_allclose(parts[:2], times["roofline"][:2])
    assert times["roofline"].iloc[1] > 1.5 * times["roofline"].iloc[0]
    assert times.iloc[2].isna().all()
