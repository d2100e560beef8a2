"""Fits the cost model to measured steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from models.cost.job import effect_names
from models.cost.model import CostModel
from models.cost.network import EfficiencyNetwork
from models.cost.work import Floats
from predictor.training.cost.examples import CostExample
from predictor.training.cost.tensors import CostTensors
from profiling.checked_fields import check_range
from profiling.errors import InputError

# Share of the epochs with dropout of device effects; afterwards, jobs keep their effects.
_DROPOUT_UNTIL = 0.6
# Layers with weight decay; the other parameters are physical constants.
_DEEP = ("layers", "output", "messages", "enter", "leave")


@dataclass(frozen=True, slots=True)
class CostConfig:
    """Configuration of a fit of the cost model.

    Attributes:
        hidden: width of the efficiency network.
        epochs, batch_jobs, learning_rate, weight_decay: of AdamW with a one-cycle schedule.
        huber_beta: log error beyond which the loss grows only linearly.
        effect_penalty: penalty that keeps the effects of devices and campaigns near 0.
        effect_dropout: share of jobs in a step of the fit without their device type's effect. What all types
            have in common then explains as much as it can, and predicts an unmeasured type.
        networks: number of networks, from different seeds, whose mean is the model's prediction.
        seed: seed of the first network's weights and batch order.
    """

    hidden: int = 96
    epochs: int = 30
    batch_jobs: int = 64
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    huber_beta: float = 0.05
    effect_penalty: float = 0.01
    effect_dropout: float = 0.3
    networks: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        names = (f.name for f in fields(self) if f.name not in ("seed", "effect_dropout"))
        check_range(self, lambda value: value > 0, "a number above 0", *names)
        if not 0 <= self.effect_dropout < 1:
            raise InputError(
                "effect_dropout is out of range", expected="from 0 to below 1", got=self.effect_dropout
            )


def fit_cost(
    examples: Sequence[CostExample],
    config: CostConfig = CostConfig(),
    card: dict[str, Any] | None = None,
    report: Callable[[int, float], None] = lambda _epoch, _loss: None,
) -> CostModel:
    """Fit a cost model to examples.

    Raises:
        InputError: fewer than two examples.
    """
    if len(examples) < 2:
        raise InputError("too few measured steps", expected="at least 2", got=len(examples))
    devices, campaigns = names_of(examples)
    tensors = CostTensors.of(examples, devices, campaigns)
    mean = tensors.features.mean(0)
    scale = tensors.features.std(0).clamp_min(0.05)
    standard = {"mean": mean.numpy().astype(np.float64), "scale": scale.numpy().astype(np.float64)}
    members: list[dict[str, Floats]] = []
    for number in range(config.networks):
        seeded = replace(config, seed=config.seed * config.networks + number)
        with torch.random.fork_rng():
            torch.manual_seed(seeded.seed)
            network = EfficiencyNetwork(config.hidden, len(devices), len(campaigns), config.effect_dropout)
            train_network(network, tensors, mean, scale, seeded, report)
        weights = {
            name: value.detach().numpy().astype(np.float64) for name, value in network.named_parameters()
        }
        members.append(weights | standard)
    return CostModel(tuple(members), tuple(devices), tuple(campaigns), card or {})


def names_of(examples: Sequence[CostExample]) -> tuple[list[str], list[str]]:
    """Devices (with and without a precision) and campaigns with effects of their own."""
    devices = sorted({n for e in examples for n in effect_names(e.job.device.name, e.job.precision)})
    return devices, sorted({e.campaign for e in examples if e.timing == "step"})


def train_network(
    network: EfficiencyNetwork,
    tensors: CostTensors,
    mean: torch.Tensor,
    scale: torch.Tensor,
    config: CostConfig,
    report: Callable[[int, float], None] = lambda _epoch, _loss: None,
) -> None:
    """Fit one network in place.

    Args:
        network: the network, which predicts log seconds.
        tensors: the examples.
        mean, scale: [F] to standardise features.
        config: configuration; its seed orders the batches.
        report: called with the epoch and its mean loss.
    """
    rng = np.random.default_rng(config.seed)
    deep = [p for name, p in network.named_parameters() if name.startswith(_DEEP)]
    plain = [p for name, p in network.named_parameters() if not name.startswith(_DEEP)]
    optimizer = torch.optim.AdamW(
        [
            {"params": deep, "weight_decay": config.weight_decay},
            {"params": plain, "weight_decay": config.weight_decay / 10},
        ],
        lr=config.learning_rate,
    )
    per_epoch = -(-len(tensors) // config.batch_jobs)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.learning_rate, total_steps=config.epochs * per_epoch + 1
    )
    network.train()
    for epoch in range(config.epochs):
        if epoch >= _DROPOUT_UNTIL * config.epochs:
            network.effect_dropout = 0.0
        order, total = rng.permutation(len(tensors)), 0.0
        for begin in range(0, len(order), config.batch_jobs):
            jobs = order[begin : begin + config.batch_jobs]
            which = torch.from_numpy(jobs)
            predicted = network.log_seconds(tensors.batch(jobs, mean, scale))
            error = F.smooth_l1_loss(
                predicted, tensors.target[which], beta=config.huber_beta, reduction="none"
            )
            loss = (error * tensors.weight[which]).mean() + config.effect_penalty * network.penalty()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(jobs)
        report(epoch, total / len(tensors))
    network.eval()
