from __future__ import annotations

import numpy as np

from profiling.workload import Workload
from scheduling.core.job import JobState, TraceJob
from scheduling.sia.configurations import Configuration
from scheduling.sia.objective import SiaConfig
from scheduling.sia.pairs import SharingPair, choose_with_pairs


def test_of_two_jobs_that_share_a_gpu_the_one_that_must_stay_leads() -> None:
    """The other may be moved, and its follower would move with it."""
    jobs = [
        JobState(TraceJob(f"j{n}", Workload("resnet18-cifar"), 1.0, preemptible=n == 0), n, 1.0, gpus=(0,))
        for n in range(2)
    ]
    both = np.ones(2)
    chosen = choose_with_pairs(
        jobs, [Configuration(1, 1, 0)], np.ones((2, 1)), both, both, np.zeros(2, np.int64), {1: 0},
        [SharingPair(1, 0, 0, 0.9, 0.9)], np.array([1]), SiaConfig(),
    )  # fmt: skip
    assert chosen.followers == [(jobs[1], jobs[0])]
    assert list(chosen.configurations) == [1]
