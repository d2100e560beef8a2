"""Fitting: the encoder on solo step times, then an ensemble of co-location networks on measured sets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from models.colocation_network import (
    ColocationNetwork,
    NetworkConfig,
    SetOutput,
    SetTensors,
    member_width,
)
from models.graph_tensors import side_by_side
from models.workload_encoder import WorkloadEncoder
from predictor.config import LossCallback, TrainingConfig
from predictor.examples.examples import Examples, SoloExamples
from predictor.examples.featurizer import Featurizer
from predictor.fitted.model import CotenantModel, Scaler, encoder_input
from predictor.fitted.utilization import utilization_loss
from predictor.gaussian_process.set_process import SetProcess
from predictor.training.accelerator import moved, training_device
from predictor.training.progress import NOTHING_KEPT, Progress
from predictor.training.targets import TargetBatch, TrainingBatches
from predictor.training.validation import HeldOut
from profiling.errors import InputError
from profiling.workload import SHARING_MODES


def fit_encoder(
    solo: SoloExamples,
    featurizer: Featurizer,
    network: NetworkConfig,
    config: TrainingConfig,
    report: LossCallback | None = None,
    progress: Progress = NOTHING_KEPT,
    start: WorkloadEncoder | None = None,
) -> WorkloadEncoder:
    """Level 1: minimise the error of log solo step time. Without rows the encoder keeps its initial weights,
    random ones or those of `start`, which is fitted further in place."""
    torch.manual_seed(config.seed)
    encoder = start or WorkloadEncoder(network.encoder)
    if not len(solo.workloads):
        return encoder
    inputs = [
        encoder_input([featurizer.job(w, d)], featurizer)
        for w, d in zip(solo.workloads, solo.devices, strict=True)
    ]
    target = np.log(solo.step_time_s)
    device = training_device()
    encoder.to(device)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=config.encoder_learning_rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.encoder_learning_rate, total_steps=max(config.encoder_steps, 1) + 1
    )
    rng = np.random.default_rng(config.seed)
    # Each model on a device has the same weight, however often it was measured.
    _, group, count = np.unique(
        [f"{w.model} {d}" for w, d in zip(solo.workloads, solo.devices, strict=True)],
        return_inverse=True,
        return_counts=True,
    )
    odds = 1.0 / count[group] / len(count)
    encoder.train()
    for step in progress.steps("encoder", config.encoder_steps, encoder, optimizer, schedule, rng):
        chosen = rng.choice(len(inputs), min(config.encoder_batch, len(inputs)), replace=False, p=odds)
        parts = [inputs[i] for i in chosen]
        graphs = side_by_side([part[0] for part in parts])
        totals, devices, log_step = (
            torch.cat(column).to(device)
            for column in ([p[1] for p in parts], [p[2] for p in parts], [p[3] for p in parts])
        )
        optimizer.zero_grad()
        predicted = encoder(moved(graphs, device), totals, devices, log_step).log_step_s
        error = predicted - torch.tensor(target[chosen], dtype=torch.float32, device=device)
        loss = torch.log1p((error / config.encoder_scale) ** 2).mean()
        value = take_step(loss, encoder, optimizer, schedule, "encoder")
        progress.note("encoder", step + 1, value)
        if report:
            report("encoder", step + 1, config.encoder_steps, value)
    encoder.cpu().eval()
    return encoder


def fit(
    examples: Examples,
    solo: SoloExamples,
    featurizer: Featurizer,
    network: NetworkConfig,
    config: TrainingConfig,
    report: LossCallback | None = None,
    encoder: WorkloadEncoder | None = None,
    progress: Progress = NOTHING_KEPT,
    held_out: Examples | None = None,
) -> CotenantModel:
    """Fit the whole model on `examples`; every set is seen with and without its members' solo measurements.

    Args:
        held_out: sets excluded from training; `report` receives the error on them.
    """
    encoder = encoder or fit_encoder(solo, featurizer, network, config, report, progress)
    campaigns = tuple(sorted(set(examples.campaign)))
    model = CotenantModel(network, campaigns, encoder, [], Scaler.neutral(member_width(network)), featurizer)
    batches = TrainingBatches(model, examples, config)
    validation = HeldOut.of(model, held_out) if held_out is not None else None
    for member in range(config.ensemble):
        seed = config.seed * 1000 + member
        model.networks.append(_fit_one(batches, model, config, seed, report, member, progress, validation))
    if config.process:
        model.process = SetProcess.fit(examples, featurizer)
    return model


def _fit_one(
    batches: TrainingBatches,
    model: CotenantModel,
    config: TrainingConfig,
    seed: int,
    report: LossCallback | None,
    number: int,
    progress: Progress,
    validation: HeldOut | None,
) -> ColocationNetwork:
    torch.manual_seed(seed)
    device = training_device()
    network = ColocationNetwork(model.config, model.campaigns).to(device)
    batches, phase = batches.on(device), f"network {number + 1}"
    slow = [p for n, p in network.named_parameters() if not n.startswith(("prior", "baseline"))]
    optimizer = torch.optim.AdamW(
        [
            {"params": slow, "weight_decay": config.weight_decay},
            {"params": network.prior.parameters(), "lr": config.prior_learning_rate, "weight_decay": 0.0},
            {"params": network.baseline.parameters(), "weight_decay": config.baseline_decay},
        ],
        lr=config.learning_rate,
    )
    rates = [g["lr"] for g in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=config.epochs + 1)
    for epoch in progress.steps(phase, config.epochs, network, optimizer, schedule):
        network.train()
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        given = batches.of(epoch)
        for batch in given:
            output = network(hide_campaigns(batch.sets, config.campaign_dropout))
            loss = loss + batch.weight * batch_loss(output, batch, config.beta) / len(given)
        value = take_step(loss, network, optimizer, schedule, phase)
        progress.note(phase, epoch + 1, value)
        if report:
            report(phase, epoch + 1, config.epochs, value)
        if validation is not None:
            validation.report(network, phase, epoch + 1, config.epochs, report)
    return network.cpu().eval()


class DivergedError(InputError):
    """A loss is not finite."""


def take_step(
    loss: Tensor,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    phase: str,
) -> float:
    """Update the module by the gradient of a loss; returns the loss.

    Raises:
        DivergedError: it is not finite.
    """
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    value = float(loss.item())
    if not math.isfinite(value):
        raise DivergedError(
            f"the training diverged ({phase})",
            expected="a finite loss",
            got=value,
            hint="lower the learning rate",
        )
    return value


def batch_loss(output: SetOutput, batch: TargetBatch, beta: float) -> Tensor:
    """Total loss of a batch of sets."""
    loss = colocation_loss(output, batch.target, batch.known, batch.censored, beta)
    if batch.utilization_residual is not None:
        loss = loss + utilization_loss(output, batch.sets.present, batch.utilization_residual, beta)
    return loss


def colocation_loss(
    output: SetOutput, target: Tensor, measured: Tensor, censored: Tensor, beta: float
) -> Tensor:
    """Huber loss of the log ratio; a censored ratio is a lower bound, so only falling short of it costs."""
    predicted = output.log_baseline - output.log_slowdown
    error = torch.where(measured, predicted - torch.nan_to_num(target), torch.zeros_like(predicted))
    error = torch.where(censored, error.clamp_max(0.0), error)
    if not measured.any():
        return error[measured].sum()  # 0, whereas a mean of nothing is NaN
    return nn.functional.smooth_l1_loss(error[measured], torch.zeros_like(error[measured]), beta=beta)


def hide_campaigns(sets: SetTensors, ratio: float) -> SetTensors:
    """Move some sets to the column of unknown campaigns."""
    first = len(SHARING_MODES)
    hidden = torch.rand(len(sets.setting), device=sets.setting.device) < ratio
    setting = sets.setting.clone()
    setting[hidden, first:] = 0.0
    setting[hidden, -1] = 1.0
    return replace(sets, setting=setting)
