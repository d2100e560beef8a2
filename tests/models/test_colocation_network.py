from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from models.colocation_network import (
    ColocationNetwork,
    NetworkConfig,
    SetTensors,
    member_width,
)
from models.features import EDGE_FEATURES, OTHERS_WIDTH, WANTS_WIDTH, edge_features
from models.prior import bounded_excess
from predictor.examples.examples import pairs_within
from profiling.errors import InputError
from profiling.workload import SHARING_MODES
from tests.predictor.synthetic import NETWORK

CAMPAIGNS = ("one", "two")
SETTINGS = len(SHARING_MODES) + len(CAMPAIGNS) + 1


def network(config: NetworkConfig = NETWORK, spread: float = 0.0) -> ColocationNetwork:
    """As it starts; with `spread`, as if it had learned something wild."""
    torch.manual_seed(1)
    one = ColocationNetwork(config, CAMPAIGNS)
    if spread:
        for parameter in one.parameters():
            torch.nn.init.normal_(parameter, std=spread)
    return one.eval()


def sets_of(sizes: list[int], seed: int = 0, order: np.ndarray | None = None) -> SetTensors:
    """Random members; `order` names them anew without changing who shares with whom."""
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    member = rng.normal(size=(count, member_width(NETWORK)))
    wants = np.concatenate(
        [rng.random((count, OTHERS_WIDTH)), rng.normal(size=(count, WANTS_WIDTH - OTHERS_WIDTH))], 1
    )
    set_index = np.repeat(np.arange(len(sizes)), sizes)
    order = np.arange(count) if order is None else order
    member, wants, set_index = member[order], wants[order], set_index[order]
    edge_index = pairs_within(set_index)
    source, target = edge_index
    between = source != target
    edges = np.zeros((len(source), len(EDGE_FEATURES)))
    edges[between] = edge_features(wants[target[between]], wants[source[between]])
    others = np.zeros((count, OTHERS_WIDTH))
    np.add.at(others, target[between], wants[source[between], :OTHERS_WIDTH])
    setting = np.zeros((count, SETTINGS))
    setting[:, [0, -1]] = 1.0
    return SetTensors(
        torch.tensor(member, dtype=torch.float32),
        torch.tensor(others, dtype=torch.float32),
        torch.tensor(setting, dtype=torch.float32),
        torch.from_numpy(edge_index),
        torch.tensor(edges, dtype=torch.float32),
        torch.from_numpy(set_index),
    )


@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("form", ["gatv2", "paper"])
def test_slowdown_is_one_alone_and_never_less(form: str, spread: float) -> None:
    one = network(replace(NETWORK, form=form), spread)
    with torch.no_grad():
        assert one(sets_of([1, 1, 1])).log_slowdown.tolist() == [0.0, 0.0, 0.0]
        together = one(sets_of([2, 3, 4, 1])).log_slowdown
    assert torch.isfinite(together).all()
    assert (together[:9] >= 0).all()
    assert together[9] == 0


def test_order_of_members_does_not_matter() -> None:
    one, sizes = network(spread=0.5), [2, 4, 1, 3]
    order = np.random.default_rng(5).permutation(10)
    with torch.no_grad():
        expected, got = one(sets_of(sizes)), one(sets_of(sizes, order=order))
    for column in ("log_slowdown", "log_baseline", "utilization"):
        torch.testing.assert_close(
            getattr(got, column), getattr(expected, column)[torch.from_numpy(order)], rtol=1e-4, atol=1e-5
        )


def test_starts_at_the_prior() -> None:
    one, sets = network(), sets_of([2, 3])
    source, target = sets.edge_index
    between = source != target
    with torch.no_grad():
        prior = one.prior(sets.edges[between], sets.setting[target[between]], target[between], 5)
        output = one(sets)
    expected = bounded_excess(prior, sets.others[:, -1])
    torch.testing.assert_close(output.log_slowdown.expm1(), expected, rtol=1e-4, atol=1e-5)
    assert (prior > 0).all()
    assert not output.log_baseline.any()


def test_a_neighbour_takes_no_larger_a_share_of_the_time_than_alone() -> None:
    excess = torch.tensor([0.0, 0.3, 5.0, 1e6])
    for occupied in (0.0, 0.1, 0.6):
        bounded = bounded_excess(excess, torch.full((4,), occupied))
        assert (bounded + 1 <= 1 / (1 - occupied) + 2e-3).all()
        assert (bounded.diff() >= 0).all()
    for unbounded in (1.0, 1.7):
        torch.testing.assert_close(bounded_excess(excess, torch.full((4,), unbounded)), excess)


def test_no_answer_passes_what_the_neighbours_leave() -> None:
    one, sets = network(spread=3.0), sets_of([2, 2])
    sets.others[:, -1] = 0.2
    with torch.no_grad():
        assert (one(sets).log_slowdown.exp() <= 1.25 + 1e-4).all()


def test_the_parts_of_the_prior_sum_to_it() -> None:
    one, sets = network(spread=0.5), sets_of([2])
    edges, setting, target = sets.edges[:2], sets.setting[:2], sets.edge_index[1, :2]
    with torch.no_grad():
        parts = one.prior.parts(edges, setting)
        whole = one.prior(edges, setting, target, 2)
    torch.testing.assert_close(parts.sum(1)[torch.argsort(target)], whole)
    assert (parts >= 0).all()


@pytest.mark.parametrize("switch", ["use_edge", "use_device", "use_prior"])
def test_switches_have_their_effect(switch: str) -> None:
    sets = sets_of([2, 2])
    with torch.no_grad():
        on = network(spread=0.3)(sets).log_slowdown
        off = network(replace(NETWORK, **{switch: False}), 0.3)(sets).log_slowdown  # type: ignore[arg-type]
    assert not torch.allclose(on, off)


@pytest.mark.parametrize("change", [{"width": 0}, {"heads": "2"}, {"dropout": 1.0}])
def test_refuses_a_bad_configuration(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="network"):
        NetworkConfig(**change)  # type: ignore[arg-type]
