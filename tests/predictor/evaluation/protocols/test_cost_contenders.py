"""Contenders based on the cost model, on synthetic data that follow it and that they should recover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from datasets.splits import make_split
from datasets.tables import empty_table, make_table
from models.cost import default_cost_model
from predictor.evaluation.protocols.catalogue import get_protocol, make_trial
from predictor.evaluation.protocols.graphs import graph_of
from predictor.evaluation.protocols.protocol import Protocol
from predictor.evaluation.protocols.published import cost_model
from predictor.evaluation.protocols.registry import contenders
from predictor.evaluation.protocols.runner import collect, make_plan, run_missing
from profiling.devices import get_device
from profiling.workload import Workload

NETWORKS = ("resnet18", "resnet50", "vgg11", "mobilenet_v2", "squeezenet1_0")


def source(name: str) -> dict[str, object]:
    return {"source": name, "campaign": name, "licence": "MIT", "origin": "measured", "gpus": 1}


def row(name: str, network: str, device: str, options: str, times: float = 1.0) -> dict[str, object]:
    """A step that takes as long as the shipped cost model predicts, or a multiple of that."""
    spec = f"torchvision/{network}:{options}"
    job, graph = Workload.parse(spec), graph_of(spec)
    assert graph is not None
    cost = default_cost_model().cost(graph, get_device(device), job)
    return {
        "device": device,
        "workload": spec,
        "architecture": f"torchvision/{network}",
        "batch_size": job.batch_size,
        "mode": job.mode,
        "precision": job.precision,
        "step_time_s": times * cost.step_time_s,
        "utilization_ratio": cost.utilization_ratio,
        "busy_s": cost.busy_s,
    } | source(name)


def errors(
    protocol: str | Protocol, folder: Path, names: tuple[str, ...], **tables: pd.DataFrame
) -> dict[str, float]:
    chosen = get_protocol(protocol) if isinstance(protocol, str) else protocol
    plan = make_plan(make_trial(chosen, tables), contenders(names), [0], folder)
    run_missing(plan)
    return {name: r["metrics"]["mape_percent"] for name, r in collect(plan, resamples=5).items()}


def test_processes_under_ideal_processor_sharing(tmp_path: Path) -> None:
    options = "batch_size=16,mode=inference"
    alone = [row("parvagpu", n, f"a100-80gb:mig={s}g", options) for n in NETWORKS[1:4] for s in (1, 4)]
    sets = [
        {
            "set_id": f"p/{number}/{count}",
            "member": member,
            "sharing": "mps",
            "processes": count,
            "throughput_ratio": 1 / max(count * float(one["busy_s"]) / float(one["step_time_s"]), 1.0),  # type: ignore[arg-type]
            **{
                k: v
                for k, v in one.items()
                if k not in ("step_time_s", "busy_s", "gpus", "utilization_ratio")
            },
        }
        for number, one in enumerate(alone)
        for count in (2, 3, 5)
        for member in range(count)
    ]
    result = errors(
        "parvagpu-by-model",
        tmp_path,
        ("process-sharing", "process-sharing-trees", "constant"),
        colocation=make_table("colocation", sets),
        solo=make_table("solo", alone),
    )
    assert result["process-sharing"] == pytest.approx(0, abs=1e-6)
    assert result["process-sharing-trees"] < 0.5 * result["constant"]


def mixes_of(whole: pd.DataFrame, log_ratio: Callable[[np.ndarray, int], float]) -> pd.DataFrame:
    """120 mixes of 2 to 5 jobs of `whole`; `log_ratio` depends on the members' rows and the position."""
    generator, mixes = np.random.default_rng(0), []
    for number in range(120):
        members = generator.choice(len(whole), 2 + number % 4)
        for member, index in enumerate(members):
            job = whole.iloc[index]
            mixes.append(
                {
                    "set_id": f"miso/{number}",
                    "member": member,
                    "device": "a100",
                    "sharing": "mps",
                    "workload": job["workload"],
                    "architecture": job["architecture"],
                    "batch_size": job["batch_size"],
                    "numerator_sm_share_ratio": 1.0,
                    "denominator_sm_share_ratio": 0.14,
                    "log_step_time_ratio": log_ratio(members, member),
                    **{k: v for k, v in source("miso").items() if k != "gpus"},
                }
            )
    return make_table("mixes", mixes)


def alone_on_slices() -> pd.DataFrame:
    rows = [
        row("miso", n, device, f"batch_size={batch}")
        for n in NETWORKS
        for batch in (8, 64)
        for device in ("a100:mig=7g", "a100:mig=3g", "a100:mig=1g")
    ]
    return make_table("solo", rows)


def test_mixes_from_the_jobs_solo_runs(tmp_path: Path) -> None:
    """A member's ratio is the sum of all busy times, which the solo runs show, whatever the model's name."""
    solo = alone_on_slices()
    whole = solo[solo["device"] == "a100:mig=7g"].reset_index(drop=True)
    busy = whole["utilization_ratio"].to_numpy()
    mixes = mixes_of(whole, lambda members, _: float(np.log(busy[members].sum())))
    names = ("mix-profiles", "constant")
    result = errors("miso-by-model", tmp_path, names, mixes=mixes, solo=solo)
    assert result["mix-profiles"] < 0.5 * result["constant"]


def test_mixes_larger_than_those_in_training(tmp_path: Path) -> None:
    """Each job has a pressure and a sensitivity, which mixes of two and three determine."""
    solo = alone_on_slices()
    whole = solo[solo["device"] == "a100:mig=7g"].reset_index(drop=True)
    pressure, sensitivity = (np.random.default_rng(k).uniform(0.2, 1.0, len(whole)) for k in (1, 2))

    def log_ratio(members: np.ndarray, member: int) -> float:
        others = np.delete(members, member)
        return float(np.log1p(sensitivity[members[member]] * pressure[others].sum()) - 0.5)

    names = ("mix-sharing", "mix-profiles", "constant")
    result = errors("miso-by-size", tmp_path, names, mixes=mixes_of(whole, log_ratio), solo=solo)
    assert result["mix-sharing"] < 0.5 * result["mix-profiles"]
    assert result["mix-sharing"] < 10


def test_a_network_on_a_device_where_only_others_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "_CELL_STEPS", 60)
    monkeypatch.setattr(cost_model, "_PARTS", 2)
    steps = [
        row("lamikr", n, device, "batch_size=12,precision=fp32", times)
        for n in NETWORKS
        for device, times in (("v100", 1.5), ("p100", 1.0), ("rtx-3090", 0.8), ("t4", 1.2))
        if device != "rtx-3090"
    ]
    names = ("cost-model-cells", "constant")
    result = errors("lamikr-network-on-device", tmp_path, names, solo=make_table("solo", steps))
    assert result["cost-model-cells"] < 0.6 * result["constant"]


def test_graph_networks_predict_left_out_cells(tmp_path: Path) -> None:
    """Trained on only a few cells, they come close to the plain network."""
    steps = [row("timm", n, "rtx-3090", "batch_size=16,precision=amp") for n in NETWORKS]
    result = errors(
        replace(
            get_protocol("timm-train-by-family"),
            folds=lambda rows, seed: make_split(rows, "by-family", seed, 2, unit="family"),
        ),
        tmp_path,
        ("cost-model", "cost-e-ggat-1", "cost-readout-1"),
        solo=make_table("solo", steps),
        workloads=empty_table("workloads"),
    )
    assert set(result) == {"cost-model", "cost-e-ggat-1", "cost-readout-1"}
    assert all(0 < error < 400 for error in result.values())
