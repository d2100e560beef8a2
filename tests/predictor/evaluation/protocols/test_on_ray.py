from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from predictor.evaluation.protocols.on_ray import spread_on_ray
from predictor.evaluation.protocols.protocol import Protocol, make_trial
from predictor.evaluation.protocols.registry import contenders
from predictor.evaluation.protocols.runner import Plan, collect, make_plan, run_missing
from profiling.errors import UnavailableError
from tests.models.baselines.test_baselines import SOLO, TRAIN
from tests.ray_stand_in import Call, Cluster, ray

__all__ = ["ray"]


def plan_in(folder: Path) -> Plan:
    protocol = Protocol("mine", "a model never seen", ("mine-2026-01",), "by-model")
    trial = make_trial(protocol, {"colocation": TRAIN, "solo": SOLO})
    return make_plan(trial, contenders(["constant", "additive"]), [0], folder)


def test_folds_are_the_same_as_in_one_process(ray: Callable[..., Cluster], tmp_path: Path) -> None:
    ray(a=0, b=0, c=0).dying = {"b"}
    here, on_ray = (plan_in(tmp_path / name) for name in ("here", "there"))
    run_missing(here)
    run_missing(on_ray, spread=lambda plan: spread_on_ray(plan, "auto"))
    both = [collect(plan, resamples=5) for plan in (here, on_ray)]
    assert "metrics" in both[0]["constant"]
    for name in ("constant", "additive"):
        first, second = ({k: v for k, v in side[name].items() if k != "seconds_per_fold"} for side in both)
        assert first == second


def test_a_fit_that_kills_its_workers_is_named(
    ray: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = ray(**{f"n{i}": 0 for i in range(4)})
    alive = cluster.get

    def get(call: Call) -> object:
        if call.task[0] == "additive":
            cluster.dying.add(call.node)
        return alive(call)

    monkeypatch.setattr(cluster, "get", get)
    plan = plan_in(tmp_path)
    with pytest.raises(UnavailableError) as caught:
        run_missing(plan, spread=lambda plan: spread_on_ray(plan, "auto", patience_s=0.1))
    assert "additive" in str(caught.value.got) or "no node" in caught.value.message
