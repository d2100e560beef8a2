from __future__ import annotations

import numpy as np
import pytest

from profiling.devices import get_device
from scheduling.core.job import JobState, TraceJob
from scheduling.simulator.accounting import accounts, energy, finish_time_rho, jain_index
from tests.scheduling.tables import JOBS


def states(*jobs: tuple[float, int, str]) -> list[JobState]:
    return [
        JobState(
            TraceJob(f"j{n}", JOBS[0], 100.0, submit, gpus=gpus, user=user), n, 0.0, attained_gpu_s=3600.0
        )
        for n, (submit, gpus, user) in enumerate(jobs)
    ]


def test_rho_is_relative_to_a_share_of_the_cluster() -> None:
    # Both are there for 200 s, one after the other on the only GPU: N is 2 for the first, 1.5 for the second.
    jobs = states((0.0, 1, ""), (0.0, 1, ""))
    rho = finish_time_rho(jobs, np.array([100.0, 200.0]), 1, np.array([100.0, 100.0]))
    assert rho == pytest.approx([0.5, 200 / 150])
    # On two GPUs each has its own: no job may take longer than alone.
    assert finish_time_rho(jobs, np.array([100.0, 200.0]), 2, np.array([100.0, 100.0])) == pytest.approx(
        [1.0, 2.0]
    )
    # A gang of two on a cluster of two with N = 2 has one GPU as its share.
    gangs = states((0.0, 2, ""), (0.0, 2, ""))
    assert finish_time_rho(gangs, np.array([200.0, 200.0]), 2, np.array([100.0, 100.0])) == pytest.approx(
        [1.0, 1.0]
    )


def test_jain_index() -> None:
    assert jain_index(np.ones(4)) == pytest.approx(1.0)
    assert jain_index(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)


def test_accounts() -> None:
    jobs = states((0.0, 1, "ann"), (0.0, 1, "bob"))
    figures = accounts(jobs, np.array([100.0, 300.0]), 2, 150.0, np.array([100.0, 100.0]))
    assert figures["gpu_hours_saved"] == pytest.approx(50 / 3600)
    assert figures["users"]["bob"]["mean_finish_time_rho"] == pytest.approx(3.0)
    assert figures["users"]["ann"]["gpu_hours"] == 1.0
    assert figures["jain_index"] == pytest.approx((1 + 1 / 3) ** 2 / (2 * (1 + 1 / 9)))
    assert "deadlines" not in figures
    # Users count alike, however many jobs they have.
    more = states((0.0, 1, "ann"), (0.0, 1, "ann"), (0.0, 1, "ann"), (0.0, 1, "bob"))
    many = accounts(more, np.array([100.0] * 3 + [300.0]), 4, 150.0, np.full(4, 100.0))
    assert many["jain_index"] == figures["jain_index"]
    assert "jain_index" not in accounts(jobs, np.array([100.0, 300.0]), 2, 150.0, None)


def test_a_job_that_failed_has_not_met_its_deadline() -> None:
    jobs = [JobState(TraceJob(f"j{n}", JOBS[0], 100.0, deadline_s=200.0), n, 0.0) for n in range(4)]
    jobs[0].ends_early = True
    figures = accounts(jobs, np.array([100.0, 100.0, 100.0, 300.0]), 2, 150.0, None)
    assert (figures["deadlines"], figures["deadlines_met_ratio"]) == (4, 0.5)


def test_energy_is_the_power_limit_over_the_time_in_use() -> None:
    watts = get_device("v100").power_limit_w
    assert energy({"v100": 7200.0}) == {"energy_at_power_limit_kwh": pytest.approx(watts * 2 / 1000)}
    assert energy({"v100": 7200.0, "a synthetic type": 1.0}) == {}
    assert energy({}) == {}
