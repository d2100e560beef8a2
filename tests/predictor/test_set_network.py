from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.colocation_network import ColocationNetwork, NetworkConfig
from predictor.set_network import CHUNK, PreparedJobs, from_torch, padded
from profiling.errors import InputError
from tests.predictor.synthetic import NETWORK


def network(config: NetworkConfig, seed: int = 0) -> ColocationNetwork:
    torch.manual_seed(seed)
    one = ColocationNetwork(config, ("somewhere",))
    for parameter in one.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return one


@pytest.mark.parametrize(
    "config",
    [NETWORK, replace(NETWORK, width=6, heads=3), replace(NETWORK, layers=2), replace(NETWORK, heads=1)],
)
def test_twin_equals_torch(config: NetworkConfig) -> None:
    """`from_torch` compares 64 random sets of 1 to 4 members with torch and refuses beyond 1e-5."""
    for seed in range(3):
        from_torch(network(config, seed))


@pytest.mark.parametrize("change", [{"form": "paper"}, {"use_edge": False}, {"use_prior": False}])
def test_forms_for_ablation_have_no_twin(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="ablation"):
        from_torch(network(replace(NETWORK, **change)))  # type: ignore[arg-type]


def test_padding_and_chunks_do_not_change_answers() -> None:
    twin = from_torch(network(NETWORK))
    rng = np.random.default_rng(0)
    jobs = PreparedJobs(
        rng.normal(size=(9, NETWORK.width)).astype(np.float32), rng.random((9, 10)).astype(np.float32)
    )
    setting = np.zeros(5, dtype=np.float32)
    setting[[0, 4]] = 1
    rows = rng.integers(0, 9, (CHUNK + 7, 2))
    many = twin.excess(jobs, rows, setting)
    wide = np.concatenate([rows, np.full((len(rows), 2), -1)], 1)
    # Single precision: a product over another number of rows may round otherwise.
    np.testing.assert_allclose(twin.excess(jobs, wide, setting)[:, :2], many, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(twin.excess(jobs, rows[-1:], setting), many[-1:], rtol=2e-4, atol=1e-5)
    assert not twin.excess(jobs, wide, setting)[:, 2:].any()
    assert twin.excess(jobs, rows[:0], setting).shape == (0, 2)


def test_padded() -> None:
    assert padded([[1], [2, 3, 4], []]).tolist() == [[1, -1, -1], [2, 3, 4], [-1, -1, -1]]
    assert padded([]).shape == (0, 1)
