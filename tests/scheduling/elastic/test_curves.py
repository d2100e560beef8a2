from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from predictor.examples.featurizer import shared_featurizer
from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.truth import SetTruth
from scheduling.elastic.curves import freezing_agents, norm_curve
from scheduling.elastic.jobs import SIZES
from scheduling.policies import get_policy
from scheduling.simulator.scenario import Scenario

CNN = Workload("resnet18-cifar", batch_size=128)
CLUSTER = ClusterSnapshot.from_mapping(
    {"nodes": [{"name": "n", "count": 2, "gpus": [{"device": "v100", "count": 4}]}]}
)


def solo(step_time_s: float) -> SetCache:
    return SetCache(TablePredictor({("v100", CNN): Solo(step_time_s, 2.0**30, 0.5)}, {}))


def test_truth_and_belief_share_the_gain_of_freezing() -> None:
    make = freezing_agents(CLUSTER, SetTruth(solo(0.1)), solo(0.2))
    agent = make(TraceJob("j", CNN, 100.0, gpus=2, min_gpus=1, max_gpus=4))
    really, believed = agent.rate_for("v100"), agent.believed_for("v100")
    sizes = np.array(SIZES)
    np.testing.assert_allclose(really[:, 0], np.where(sizes <= 4, (sizes / 2) ** 0.9 / 0.1, 0.0))
    np.testing.assert_allclose(really, 2 * believed)
    gain = really[0] / really[0, 0]
    assert agent.prefixes[0] == 0
    assert (np.diff(gain) >= 0).all()
    assert 1.0 < gain[-1] < 6.0
    assert agent.norm_shares[:, 0].max() == 0.0


def test_a_vision_transformer_does_not_have_the_norms_of_a_cnn() -> None:
    vit = Workload("vit-base-224", batch_size=32)
    cache = SetCache(TablePredictor({("v100", vit): Solo(0.5, 2.0**30, 0.5)}, {}))
    agent = freezing_agents(CLUSTER, SetTruth(cache), cache)(TraceJob("j", vit, 100.0))
    layers = len(shared_featurizer().graph(vit).layers)
    _, expected = norm_curve("lstm-scratch", np.array(agent.prefixes) / layers)
    np.testing.assert_array_equal(agent.norm_shares, expected)


@pytest.mark.parametrize("policy", ["icefrog", "icefrog-unfrozen", "pollux-freezing"])
@pytest.mark.parametrize("least", [5, None])
def test_a_gang_of_no_usual_size_runs_on_what_it_requests(policy: str, least: int | None) -> None:
    gangs = [TraceJob(f"g{n}", CNN, 8_000.0, 10.0, n, least, n) for n in (5, 6, 7)]
    jobs = [TraceJob("small", CNN, 30_000.0), *gangs, TraceJob("whole", CNN, 8_000.0, 20.0, 8)]
    result = Scenario(jobs, CLUSTER, SetTruth(solo(0.1)), solo(0.1)).run(policy)
    assert all(job.finished_s is not None for job in result.jobs)
    for job in result.jobs[1:4]:
        held_s = sum(job.served_s.values())
        assert job.attained_gpu_s == pytest.approx(job.job.gpus * held_s)


def test_unsettled_prefixes_are_not_frozen() -> None:
    _, shares = norm_curve("lstm-scratch", np.array([0.0, 0.5, 0.9]))
    assert shares[:, 0].max() == 0.0
    assert shares.max() <= 1.0
    assert (np.diff(shares, axis=1) >= -1e-9).all()


def test_simulation_freezes_under_freezing_policies() -> None:
    jobs = [
        TraceJob(f"j{k}", CNN, 20_000.0 + 1000 * k, 60.0 * k, min_gpus=1, max_gpus=4, gpus=2)
        for k in range(8)
    ]
    scenario = Scenario(jobs, CLUSTER, SetTruth(solo(0.1)), solo(0.1))
    frozen, plain = scenario.run("icefrog"), scenario.run("icefrog-unfrozen")
    assert all(j.finished_s is not None for j in [*frozen.jobs, *plain.jobs])
    assert any(j.agent.prefix_changes for j in frozen.jobs)
    assert frozen.completion_s.mean() < plain.completion_s.mean()


def test_a_job_with_frozen_layers_of_its_own_is_refused_by_a_policy_that_chooses_them() -> None:
    jobs = [TraceJob("j", replace(CNN, frozen_prefix=3), 1000.0)]
    scenario = Scenario(jobs, CLUSTER, SetTruth(solo(0.1)), solo(0.1))
    with pytest.raises(InputError, match="frozen layers itself"):
        scenario.run("icefrog")


@pytest.mark.parametrize("policy", ["icefrog", "pollux-freezing"])
def test_equal_jobs_that_freeze_do_not_take_each_others_gpus(policy: str) -> None:
    predictor = SetCache(TablePredictor({("v100", CNN): Solo(0.1), ("k80", CNN): Solo(0.4)}, {}))
    cluster = ClusterSnapshot.from_mapping(
        {"nodes": [{"name": d, "gpus": [{"device": d}]} for d in ("v100", "k80")]}
    )
    scenario = Scenario(
        [TraceJob(f"j{k}", CNN, 30_000.0) for k in range(3)], cluster, SetTruth(predictor), predictor
    )
    result = scenario.run(policy)
    assert sum(job.restarts for job in result.jobs) == 0
    assert any(job.agent.prefix_changes for job in result.jobs)


def test_freezing_policies() -> None:
    freezing = ("icefrog", "pollux-freezing")
    others = ("icefrog-unfrozen", "pollux", "optimus", "isacpp")
    assert [get_policy(n).freezes for n in (*freezing, *others)] == [True] * 2 + [False] * 4
