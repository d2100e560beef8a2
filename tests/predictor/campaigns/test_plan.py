from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datasets.bundled
from predictor.campaigns.experiment_design import greedy_design, set_kernel
from predictor.campaigns.plan import Candidate as _Candidate
from predictor.campaigns.plan import (
    PlanConfig,
    _gpu_spec,
    _single_core,
    choose_workloads,
    farthest,
    plan_campaign,
    share_runs,
    zoo_candidates,
)
from profiling.campaign.plan import CampaignPlan
from profiling.devices import discover_cpu, get_device
from profiling.errors import InputError
from profiling.measure.settings import MeasureSettings
from profiling.workload import Workload
from tests.profiling.measure.fake_nvml import FakeMig, install

JOBS = [
    Workload("vgg11-cifar", batch_size=2),
    Workload("neumf-ml1m", batch_size=64),
    Workload("ppo-lunarlander", batch_size=64),
    Workload("dcgan-64", batch_size=2),
]


def candidate(model: str, batch_size: int, *features: float) -> _Candidate:
    return _Candidate(Workload(model, batch_size=batch_size), 0.01 * batch_size, np.array(features), 10)


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 6), st.integers(0, 100))
def test_kernel_is_symmetric_semi_definite_with_unit_diagonal(jobs: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    sets = [tuple(map(int, generator.integers(0, jobs, generator.integers(2, 4)))) for _ in range(12)]
    kernel = set_kernel(generator.normal(size=(jobs, 4)), sets, np.zeros(12))
    np.testing.assert_allclose(kernel, kernel.T, atol=1e-12)
    np.testing.assert_allclose(np.diag(kernel), 1.0)
    assert np.linalg.eigvalsh(kernel).min() > -1e-9


def test_order_of_members_does_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4))
    kernel = set_kernel(x, [(0, 1, 2), (2, 0, 1)], np.zeros(2))
    assert kernel[0, 1] == pytest.approx(1.0)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 100), st.floats(1.0, 60.0))
def test_design_stays_within_the_budget_and_repeats_nothing(seed: int, budget: float) -> None:
    generator = np.random.default_rng(seed)
    sets = [(i, j) for i in range(4) for j in range(i, 4)]
    kernel = set_kernel(generator.normal(size=(4, 3)), sets, np.zeros(len(sets)))
    costs = generator.uniform(1, 5, len(sets))
    chosen = [i for i, _ in greedy_design(kernel, costs, budget, sets)]
    assert len(set(chosen)) == len(chosen)
    assert costs[chosen].sum() <= budget + 1e-6


def test_a_copy_of_a_chosen_set_comes_last() -> None:
    kernel = np.array([[1.0, 0.999, 0.1], [0.999, 1.0, 0.1], [0.1, 0.1, 1.0]])
    order = [i for i, _ in greedy_design(kernel, np.ones(3), 3.0, [(0, 1), (0, 1), (2, 3)])]
    assert order.index(2) == 1


def test_every_model_comes_before_a_second_batch_size() -> None:
    pool = [candidate("a", 1, 0.0), candidate("a", 4, 9.0), candidate("b", 2, 1.0), candidate("c", 2, 2.0)]
    assert {c.workload.model for c in choose_workloads(pool, 3)} == {"a", "b", "c"}
    assert len(choose_workloads(pool, 4)) == 4
    assert len(choose_workloads(pool, 2)) == 2


def test_farthest_picks_the_most_dissimilar() -> None:
    pool = [candidate("a", 1, 0.0), candidate("b", 1, 0.1), candidate("c", 1, 5.0)]
    assert [c.workload.model for c in farthest(pool, 1, 2)] == ["a", "c"]


def test_plan_of_given_jobs(tmp_path: Path) -> None:
    plan = plan_campaign("cpu", JOBS, PlanConfig(budget_s=300, frozen_models=1), name="t", predictor=None)
    kinds = {r.request.kind for r in plan.runs}
    assert kinds == {"solo", "colocation", "freezing", "operators"}
    assert plan.expected_s <= 300
    in_sets = {w for r in plan.runs if r.request.kind == "colocation" for w in r.request.workloads}
    assert in_sets == set(JOBS)
    assert [r.request.kind for r in plan.runs[: len(JOBS)]] == ["solo"] * len(JOBS)
    assert CampaignPlan.load(plan.save(tmp_path / "plan.json")).runs[0].request == plan.runs[0].request


@pytest.mark.parametrize("name", ["cpu", "v100"])
def test_candidates_of_the_zoo_are_of_few_sizes_and_on_a_gpu_in_mixed_precision(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["ppo-lunarlander", "neumf-ml1m", "vgg11-cifar"]
    monkeypatch.setattr("profiling.zoo.zoo_names", lambda: names)
    rates = _single_core(discover_cpu()) if name == "cpu" else get_device(name)
    pool = zoo_candidates(rates)
    assert pool
    assert {c.workload.model for c in pool} <= set(names)
    assert len({c.workload for c in pool}) == len(pool)
    for model in {c.workload.model for c in pool}:
        own = [c for c in pool if c.workload.model == model]
        whole = [c for c in own if c.workload.precision == "fp32"]
        assert 1 <= len(whole) <= 3
        assert len(own) - len(whole) == (name != "cpu")
        by_size = sorted(whole, key=lambda c: c.workload.batch_size or 0)
        steps = [c.step_time_s for c in by_size]
        assert steps == sorted(steps)
        for amp in (c for c in own if c.workload.precision == "amp"):
            (same,) = [c for c in whole if c.workload.batch_size == amp.workload.batch_size]
            assert amp.step_time_s == same.step_time_s / 2


def test_plan_of_user_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planned_factory.py").write_text(
        "import torch\n\ndef make(batch_size=4):\n    return torch.nn.Linear(8, 2), torch.randn(batch_size, 8)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = [Workload("planned_factory:make", batch_size=size) for size in (4, 8)]
    plan = plan_campaign("cpu", jobs, PlanConfig(budget_s=60, frozen_models=0))
    assert {r.request.kind for r in plan.runs} == {"solo", "colocation", "operators"}


def test_plans_are_deterministic() -> None:
    config = PlanConfig(budget_s=120, frozen_models=0)
    plans = [plan_campaign("cpu", JOBS, config, predictor=None) for _ in range(2)]
    assert plans[0] == plans[1]


def test_share_sweep() -> None:
    shares = PlanConfig(sm_shares=(0.25, 0.5), share_models=2)
    pool = [
        candidate("vgg11-cifar", 2, 0.0),
        candidate("dcgan-64", 4, 1.0),
        candidate("ppo-lunarlander", 8, 9.0),
    ]
    runs = share_runs(pool, "cuda", shares, MeasureSettings())
    assert [(r.request.workloads[0].model, r.request.workloads[0].sm_share_ratio) for r in runs] == [
        ("vgg11-cifar", 0.25), ("vgg11-cifar", 0.5), ("ppo-lunarlander", 0.25), ("ppo-lunarlander", 0.5),
    ]  # fmt: skip
    assert {(r.request.kind, r.request.sharing) for r in runs} == {("solo", "mps")}
    assert share_runs(pool, "cuda", PlanConfig(), MeasureSettings()) == []
    with pytest.raises(InputError, match="SM share"):
        PlanConfig(sm_shares=(1.0,))
    with pytest.raises(InputError, match="require MPS"):
        plan_campaign("cpu", JOBS, shares, predictor=None)


def test_budget_too_short_for_the_jobs_alone() -> None:
    with pytest.raises(InputError, match="too short"):
        plan_campaign("cpu", JOBS, PlanConfig(budget_s=3), predictor=None)


def test_bundled_plan_has_the_documented_size() -> None:
    import datasets

    plan = CampaignPlan.load(Path(datasets.__file__).parent / "bundled" / "cpu-plan.json")
    kinds = [r.request.kind for r in plan.runs]
    assert kinds.count("solo") >= 15
    assert kinds.count("colocation") >= 60
    frozen = {r.request.workloads[0].model for r in plan.runs if r.request.kind == "freezing"}
    assert len(frozen) >= 5


def test_the_bundled_gpu_plan_sweeps_shares() -> None:
    plan = CampaignPlan.load(Path(datasets.bundled.__file__).parent / "h200-plan.json")
    assert plan.expected_s <= 27 * 60
    sweep = [r.request for r in plan.runs if any(w.sm_share_ratio < 1 for w in r.request.workloads)]
    assert {(r.kind, r.sharing) for r in sweep} == {("solo", "mps")}
    assert {r.workloads[0].sm_share_ratio for r in sweep} == {0.125, 0.25, 0.5}
    # Of each job all shares, and the whole card beside them.
    jobs = {r.workloads[0].model for r in sweep}
    assert len(sweep) == 3 * len(jobs)
    alone = {
        r.request.workloads[0].model for r in plan.runs if r.request.kind == "solo" and r.request not in sweep
    }
    assert jobs <= alone


def test_a_plan_for_a_gpu_is_for_the_first_that_cuda_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    library = install(monkeypatch, FakeMig("2g.35gb"))
    assert _gpu_spec().name == "h200:mig=2g"
    library.profiles = ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _gpu_spec().name == "h200"
