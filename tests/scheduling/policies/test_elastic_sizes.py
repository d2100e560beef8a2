from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from scheduling.policies.elastic_sizes import best_sizes


@pytest.mark.parametrize("seed", range(8))
def test_sizes_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, gpus = int(rng.integers(2, 6)), int(rng.integers(6, 17))
    ladders = [[1, 2, 4, 8][: int(rng.integers(1, 5))] for _ in range(jobs)]
    rows = [(sizes, sorted(rng.uniform(0.1, 1.0, len(sizes)).tolist(), reverse=True)) for sizes in ladders]
    chosen = best_sizes(rows, gpus)

    def cost(picks: tuple[int, ...]) -> float:
        return sum(costs[sizes.index(p)] for p, (sizes, costs) in zip(picks, rows, strict=True))

    best = min((p for p in product(*ladders) if sum(p) <= gpus), key=cost)
    assert sum(chosen) <= gpus
    assert cost(tuple(chosen)) == pytest.approx(cost(best))


def test_nobody_waits_for_another_to_grow() -> None:
    assert best_sizes([], 4) == []
    assert best_sizes([([1, 2, 4], [1.0, 0.6, 0.3]), ([2], [1.0])], 4) == [2, 2]
