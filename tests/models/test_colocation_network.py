from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.colocation_network import (
    ColocationNetwork,
    NetworkConfig,
    SetTensors,
    edge_tensor,
    member_width,
)
from models.features import DEMAND_WIDTH, SUMMED_WIDTH, edge_features
from models.prior import bounded_excess
from profiling.errors import InputError
from profiling.workload import SHARING_MODES
from tests.predictor.synthetic import NETWORK

CAMPAIGNS = ("one", "two")
SETTINGS = len(SHARING_MODES) + len(CAMPAIGNS) + 1


def network(config: NetworkConfig = NETWORK, spread: float = 0.0) -> ColocationNetwork:
    """Freshly initialised; with `spread`, with large random weights."""
    torch.manual_seed(1)
    net = ColocationNetwork(config, CAMPAIGNS)
    if spread:
        for parameter in net.parameters():
            torch.nn.init.normal_(parameter, std=spread)
    return net.eval()


def sets_of(sizes: list[int], seed: int = 0) -> SetTensors:
    """Random members; sets smaller than the largest are padded."""
    rng = np.random.default_rng(seed)
    shape = (len(sizes), max(sizes))
    member = rng.normal(size=(*shape, member_width(NETWORK)))
    demand = np.concatenate(
        [rng.random((*shape, SUMMED_WIDTH)), rng.normal(size=(*shape, DEMAND_WIDTH - SUMMED_WIDTH))], 2
    )
    setting = np.zeros((len(sizes), SETTINGS))
    setting[:, [0, -1]] = 1.0
    present = np.arange(shape[1]) < np.array(sizes)[:, None]
    return SetTensors(
        *(torch.tensor(values, dtype=torch.float32) for values in (member, demand, setting)),
        torch.from_numpy(present),
    )


def between(sets: SetTensors) -> torch.Tensor:
    """[S, M, M] 1 where an edge connects two members."""
    present = sets.present.float()
    return present[:, :, None] * present[:, None] * (1 - torch.eye(present.shape[1]))


@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("form", ["gatv2", "paper"])
def test_slowdown_is_one_alone_and_never_less(form: str, spread: float) -> None:
    net = network(replace(NETWORK, form=form), spread)
    with torch.no_grad():
        assert net(sets_of([1, 1, 1])).log_slowdown.tolist() == [[0.0], [0.0], [0.0]]
        sets = sets_of([2, 3, 4, 1])
        together = net(sets).log_slowdown
    assert torch.isfinite(together).all()
    assert (together >= 0).all()
    assert not together[3].any()
    assert not together[~sets.present].any()


def test_order_of_members_and_padding_do_not_matter() -> None:
    net, sets = network(spread=0.5), sets_of([2, 4, 1, 3])
    order = torch.tensor([3, 1, 0, 2])
    shuffled = replace(
        sets, member=sets.member[:, order], demand=sets.demand[:, order], present=sets.present[:, order]
    )
    with torch.no_grad():
        expected, got, alone = net(sets), net(shuffled), net(replace_rows(sets, 0, 2))
    for column in ("log_slowdown", "log_baseline", "utilization"):
        right = getattr(expected, column)
        torch.testing.assert_close(
            getattr(got, column)[shuffled.present], right[:, order][shuffled.present], rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(getattr(alone, column), right[:1, :2], rtol=1e-4, atol=1e-5)


def replace_rows(sets: SetTensors, number: int, size: int) -> SetTensors:
    """One set without its padding."""
    row = slice(number, number + 1)
    return SetTensors(
        sets.member[row, :size], sets.demand[row, :size], sets.setting[row], sets.present[row, :size]
    )


def test_edges_equal_those_in_numpy() -> None:
    sets = sets_of([3])
    demand = sets.demand.numpy()
    expected = edge_features(demand[:, :, None], demand[:, None]) * (1 - np.eye(3))[None, :, :, None]
    torch.testing.assert_close(
        edge_tensor(sets.demand, between(sets)), torch.tensor(expected, dtype=torch.float32)
    )


def test_starts_at_the_prior() -> None:
    net, sets = network(), sets_of([2, 3])
    mask = between(sets)
    demand = sets.demand * sets.present[..., None]
    with torch.no_grad():
        prior = net.prior(edge_tensor(demand, mask), sets.setting, mask)
        output = net(sets)
    others = demand.sum(1, keepdim=True) - demand
    expected = bounded_excess(prior, others[..., SUMMED_WIDTH - 1])
    torch.testing.assert_close(output.log_slowdown.expm1(), expected, rtol=1e-4, atol=1e-5)
    assert (prior[sets.present] > 0).all()
    assert not output.log_baseline.any()


def test_a_neighbours_share_of_time_is_at_most_that_alone() -> None:
    excess = torch.tensor([0.0, 0.3, 5.0, 1e6])
    for occupied in (0.0, 0.1, 0.6):
        bounded = bounded_excess(excess, torch.full((4,), occupied))
        assert (bounded + 1 <= 1 / (1 - occupied) + 2e-3).all()
        assert (bounded.diff() >= 0).all()
    for unbounded in (1.0, 1.7):
        torch.testing.assert_close(bounded_excess(excess, torch.full((4,), unbounded)), excess)


def test_slowdown_is_bounded_by_the_time_that_neighbours_leave() -> None:
    net, sets = network(spread=3.0), sets_of([2, 2])
    sets.demand[..., SUMMED_WIDTH - 1] = 0.2
    with torch.no_grad():
        assert (net(sets).log_slowdown.exp() <= 1.25 + 1e-4).all()


def test_the_parts_of_the_prior_sum_to_it() -> None:
    net, sets = network(spread=0.5), sets_of([2])
    mask = between(sets)
    edges = edge_tensor(sets.demand, mask)
    with torch.no_grad():
        parts = net.prior.parts(edges, sets.setting[:, None, None])
        whole = net.prior(edges, sets.setting, mask)
    torch.testing.assert_close(parts[0, [0, 1], [1, 0]].sum(1), whole[0])
    assert (parts >= 0).all()


@pytest.mark.parametrize("switch", ["use_edge", "use_device", "use_prior"])
def test_switches_have_their_effect(switch: str) -> None:
    sets = sets_of([2, 2])
    with torch.no_grad():
        on = network(spread=0.3)(sets).log_slowdown
        off = network(replace(NETWORK, **{switch: False}), 0.3)(sets).log_slowdown  # type: ignore[arg-type]
    assert not torch.allclose(on, off)


@pytest.mark.parametrize("change", [{"width": 0}, {"heads": "2"}, {"dropout": 1.0}])
def test_invalid_configuration_is_rejected(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="network"):
        NetworkConfig(**change)  # type: ignore[arg-type]
