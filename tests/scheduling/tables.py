"""A small table of synthetic measurements for the tests of scheduling."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from profiling.workload import Workload
from scheduling.beliefs.table import Solo, TablePredictor

JOBS = tuple(Workload(f"model-{k}") for k in range(6))
GIB = float(2**30)


def table(sizes: int = 3, seed: int = 0, memory_gib: float = 16.0) -> TablePredictor:
    """Two devices, six jobs, and individual ratios for every set of up to `sizes`; model-5 needs 10 GiB."""
    rng = np.random.default_rng(seed)
    solo, ratios = {}, {}
    for device, speed in (("v100", 1.0), ("k80", 4.0)):
        for number, job in enumerate(JOBS):
            memory = 10.0 if number == 5 else 2.0
            solo[device, job] = Solo(speed * 0.1 * (1 + number), memory * GIB, 0.2 + 0.1 * number)
        for size in range(2, sizes + 1):
            for members in combinations_with_replacement(JOBS, size):
                ratios[device, members] = rng.uniform(1.0 / size, 1.0, size)
    return TablePredictor(solo, ratios, {"v100": memory_gib * GIB, "k80": 0.75 * memory_gib * GIB})
