"""New batches from the host before every step."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from profiling.measure.host_input import LoadedJob, Shuffled


def test_labels_follow_their_samples() -> None:
    samples, labels = torch.arange(12.0).reshape(6, 2), torch.arange(6)
    batches = list(islice(Shuffled([samples, labels, torch.tensor(3.0)], seed=1), 4))
    for shuffled, order, scalar in batches:
        torch.testing.assert_close(shuffled, samples[order])
        assert sorted(order.tolist()) == list(range(6))
        assert scalar == 3.0
    assert len({tuple(order.tolist()) for _, order, _ in batches}) > 1


@pytest.mark.parametrize("processes", [0, 1])
def test_each_step_trains_on_a_new_batch_in_the_same_memory(processes: int) -> None:
    batch = (torch.arange(8.0), torch.arange(8))
    seen: list[list[float]] = []
    inner = SimpleNamespace(
        model=None, batch=batch, samples_per_step=8, step=lambda: seen.append(batch[0].tolist())
    )
    job = LoadedJob(inner, "cpu", processes, seed=0)
    for _ in range(3):
        job.step()
        torch.testing.assert_close(batch[0], batch[1].float())
    assert job.samples_per_step == 8
    assert len({tuple(order) for order in seen}) == 3
    assert all(sorted(order) == list(map(float, range(8))) for order in seen)
