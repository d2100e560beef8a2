from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from profiling.errors import InputError
from scheduling.elastic.tracker import GradientNormTracker, TrackerConfig


def made(seed: int = 0, **options: object) -> tuple[nn.Sequential, list[nn.Module], GradientNormTracker]:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [
        nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU()),
        nn.Linear(8, 8),
        nn.Linear(8, 2),
    ]
    config = TrackerConfig(**{"decay": 0.5, "probe_every": 3, **options})  # type: ignore[arg-type]
    return nn.Sequential(*layers), layers, GradientNormTracker(layers, config)


def step(model: nn.Module, tracker: GradientNormTracker, seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(16, 4, generator=generator), torch.randint(2, (16,), generator=generator)
    with tracker.step() as probe:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
    return probe


def test_measures_squared_norms() -> None:
    model, layers, tracker = made()
    step(model, tracker, 0)
    expected = [sum(float(p.grad.square().sum()) for p in layer.parameters()) for layer in layers]
    np.testing.assert_allclose(tracker.squared_norms, expected, rtol=1e-5)
    assert tracker.norm_shares[-1] == pytest.approx(1.0)


def test_frozen_layers_do_not_train_but_are_probed() -> None:
    model, layers, tracker = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, tracker, 0)
    tracker.freeze(2)
    before = [p.detach().clone() for layer in layers[:2] for p in layer.parameters()]
    statistics = layers[0][1].running_mean.clone()  # type: ignore[index]
    norms = tracker.squared_norms[:2].copy()
    probes = []
    for seed in range(1, 7):
        probes.append(step(model, tracker, seed))
        assert all(p.grad is None for layer in layers[:2] for p in layer.parameters())
        optimizer.step()
    assert probes == [False, True, False, False, True, False]
    assert not np.allclose(tracker.squared_norms[:2], norms)
    after = [p for layer in layers[:2] for p in layer.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert torch.equal(statistics, layers[0][1].running_mean)  # type: ignore[index]
    assert layers[2].weight.requires_grad
    tracker.freeze(0)
    assert all(p.requires_grad for p in model.parameters())
    assert layers[0].training


def test_continues_from_a_checkpoint() -> None:
    model, _, tracker = made()
    for seed in range(4):
        step(model, tracker, seed)
    tracker.freeze(1)
    other, _, again = made(seed=5)
    again.load_state_dict(tracker.state_dict())
    assert again.state_dict() == tracker.state_dict()
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in model.parameters()]
    with pytest.raises(InputError, match="another model"):
        GradientNormTracker([nn.Linear(2, 2)]).load_state_dict(tracker.state_dict())
    before = again.state_dict()
    for damage in ({"peaks": [0.0]}, {"measured_at": []}, {"frozen_prefix": 9}):
        with pytest.raises(InputError, match=r"damaged|out of range"):
            again.load_state_dict(before | {"steps": 99} | damage)
        assert again.state_dict() == before
    with pytest.raises(InputError, match="damaged"):
        again.load_state_dict({})


def test_settles_only_after_its_peak() -> None:
    model, _, tracker = made(decay=0.0)
    for scale, settled in ((1.0, False), (3.0, False), (0.1, True)):
        with tracker.step():
            model.zero_grad()
            (scale * model(torch.ones(4, 4)).square().sum()).backward()
        assert bool(tracker.settled[2]) is settled
    assert tracker.freezable_shares[0] == 0.0
    assert tracker.freezable_shares[2] == pytest.approx(tracker.norm_shares[2])


def test_products_of_successive_gradients_leave_noise_out() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(50, 1, bias=False)
    plain = GradientNormTracker([layer], TrackerConfig(decay=0.99))
    unbiased = GradientNormTracker([layer], TrackerConfig(decay=0.99, unbiased=True))
    for _ in range(300):
        with plain.step(), unbiased.step():
            layer.zero_grad()
            (layer.weight * (0.1 + torch.randn(50))).sum().backward()
    assert plain.squared_norms[0] > 40  # 50 * (0.01 + 1)
    assert unbiased.squared_norms[0] < 3  # 50 * 0.01


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(InputError, match="needs layers"):
        GradientNormTracker([])
    with pytest.raises(InputError, match="out of range"):
        made()[2].freeze(3)
    for options in ({"decay": 1.0}, {"probe_every": 0}, {"settle_ratio": 0.0}):
        with pytest.raises(InputError, match="out of range"):
            TrackerConfig(**options)  # type: ignore[arg-type]
