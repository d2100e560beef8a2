from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.colocation_network import ColocationNetwork, NetworkConfig
from models.features import DEMAND_WIDTH, edge_features
from predictor.answering.set_network import CHUNK, PreparedJobs, from_torch, prior_parts
from profiling.errors import InputError
from tests.predictor.synthetic import NETWORK


def network(config: NetworkConfig, seed: int = 0) -> ColocationNetwork:
    torch.manual_seed(seed)
    net = ColocationNetwork(config, ("somewhere",))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return net


@pytest.mark.parametrize(
    "config",
    [NETWORK, replace(NETWORK, width=6, heads=3), replace(NETWORK, layers=2), replace(NETWORK, heads=1)],
)
def test_twin_equals_torch(config: NetworkConfig) -> None:
    """`from_torch` compares 64 random sets of 1 to 4 members with torch and fails beyond 1e-5."""
    for seed in range(3):
        from_torch(network(config, seed))


@pytest.mark.parametrize("part", ["slow", "usage"])
def test_weights_that_are_not_numbers_are_refused(part: str) -> None:
    spoiled = network(NETWORK)
    getattr(spoiled, part).bias.data.fill_(torch.nan)
    with pytest.raises(InputError, match="got nan"):
        from_torch(spoiled)


@pytest.mark.parametrize(
    "change", [{"form": "paper"}, {"use_edge": False}, {"use_prior": False}, {"use_device": False}]
)
def test_forms_for_ablation_have_no_twin(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="ablation"):
        from_torch(network(replace(NETWORK, **change)))  # type: ignore[arg-type]


def test_padding_and_chunks_do_not_change_predictions() -> None:
    twin = from_torch(network(NETWORK))
    rng = np.random.default_rng(0)
    jobs = PreparedJobs(
        rng.normal(size=(9, NETWORK.width)).astype(np.float32),
        rng.random((9, DEMAND_WIDTH)).astype(np.float32),
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


def test_parts_of_the_prior_equal_those_in_torch() -> None:
    net = network(NETWORK)
    twin = from_torch(net)
    rng = np.random.default_rng(0)
    demand = rng.random((6, DEMAND_WIDTH)).astype(np.float32)
    settings = np.zeros((2, twin.prior.shape[0]), dtype=np.float32)
    settings[0, [0, -1]] = settings[1, [1, -1]] = 1.0
    jobs = PreparedJobs(np.zeros((6, NETWORK.width), dtype=np.float32), demand)
    rows = np.array([[0, 1, 2], [5, 3, -1]])
    parts = prior_parts(jobs, rows, *twin.prior_weights(settings))
    for k, i in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        others = [r for j, r in enumerate(rows[k]) if j != i and r >= 0]
        edges = torch.from_numpy(np.stack([edge_features(demand[rows[k, i]], demand[r]) for r in others]))
        with torch.no_grad():
            expected = net.prior.parts(edges, torch.from_numpy(settings[k]).expand(len(others), -1)).sum(0)
        np.testing.assert_allclose(parts[k, i], expected.numpy(), rtol=1e-4)
    assert not parts[1, 2].any()
