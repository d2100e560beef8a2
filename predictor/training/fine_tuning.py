"""Fine-tuning: a fitted predictor learns from a few new sets without forgetting.

Only the co-location networks learn, with their earlier answers on the replay sets as targets too. The encoder and the
cost model are unchanged, and with them embeddings and predicted solo step times; the scaler's range is extended to the
new jobs. New campaigns get their own settings; new devices are described by their data sheets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from models.colocation_network import ColocationNetwork, SetTensors
from predictor.config import LossCallback, TrainingConfig
from predictor.examples.cross_fit import ExampleFold, architecture_groups, cross_fit
from predictor.examples.examples import Examples, examples_of
from predictor.fitted.coverage import Coverage
from predictor.fitted.device_memory import HeadCalibration
from predictor.fitted.domain import Domain
from predictor.fitted.fitted import Fitted, Manifest
from predictor.fitted.intervals import Intervals
from predictor.fitted.learned_sets import learned_rows
from predictor.fitted.model import CotenantModel
from predictor.fitted.utilization import measured_difference
from predictor.predictor import Predictor
from predictor.training.accelerator import moved, training_device
from predictor.training.fit import left_out_errors, residuals_of, within
from predictor.training.heads import fit_heads
from predictor.training.networks import batch_loss, hide_campaigns, take_step
from predictor.training.replay import remember, together, with_more_campaigns
from predictor.training.targets import TargetBatch, measured_batches
from predictor.training.validation import HeldOut
from profiling.checked_fields import check_fields
from profiling.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class FineTuning:
    """Configuration of fine-tuning.

    Attributes:
        seed: random seed.
        epochs: epochs per co-location network.
        learning_rate: initial rate, which decays to 0.
        keeping: weight of the earlier answers relative to the new measurements.
        cross_fits: groups of new architectures held out in turn to calibrate the intervals.

    Raises:
        InputError: a number is out of range.
    """

    seed: int = 0
    epochs: int = 150
    learning_rate: float = 0.003
    keeping: float = 2.0
    cross_fits: int = 4

    def __post_init__(self) -> None:
        check_fields("fine_tuning", self, positive=("epochs", "learning_rate", "cross_fits"))


def fine_tune(
    base: Predictor,
    colocation: pd.DataFrame,
    solo: pd.DataFrame,
    config: FineTuning = FineTuning(),
    report: LossCallback | None = None,
) -> Predictor:
    """Fine-tune `base` on new measured sets, as a new predictor; `base` is unchanged.

    Args:
        base: a fitted predictor, whose network configuration is used.
        colocation: new sets; those that `base` was trained on are skipped.
        solo: the same jobs alone.
        config: configuration.
        report: called with the losses.

    Raises:
        InputError: no new sets, or `base` has no replay sets.
        UnavailableError: `base` has not been fitted.
    """
    base._table()  # raises where nothing was fitted
    before, training = base.fitted_, base.training or TrainingConfig()
    colocation = new_sets(base, colocation)
    if before.replay is None:
        raise InputError(
            f"predictor {base.version} has no replay sets and would forget old ones",
            expected="a checkpoint written by this version",
            hint="train it again",
        )
    solo = solo[
        solo.architecture.isin(set(colocation.architecture)) & solo.campaign.isin(set(colocation.campaign))
    ]
    new = examples_of(colocation, solo)
    model = _learned(before.model, new, before.replay, config, training, report)
    replay = with_more_campaigns(before.replay, len(model.campaigns) - len(before.model.campaigns))
    encoded = model.encode(zip(new.workloads, new.devices, strict=True))
    jobs = dict.fromkeys((w.without_solo(), d) for w, d in zip(new.workloads, new.devices, strict=True))
    points = np.array([encoded[job].embedding for job in jobs])
    fitted = Fitted(
        model,
        _heads(before.heads, new, solo, model),
        _widened(before, new, solo, config, training, report),
        Domain(np.concatenate([before.domain.points, points]), before.domain.radius),
        _manifest(before.manifest, base.version, colocation, new),
        together(replay, remember(model, new, config.seed)),
    )
    return Predictor.of(fitted, "fine-tuned", before.model.config, training)


def new_sets(base: Predictor, colocation: pd.DataFrame) -> pd.DataFrame:
    """Rows of the sets that `base` was not trained on.

    Raises:
        InputError: there are none; or see `learned_rows`.
    """
    new = colocation[~learned_rows(base.fitted_, colocation)]
    if new.empty:
        raise InputError(
            "nothing to fine-tune on",
            expected="sets that the predictor was not trained on",
            got=f"{colocation.set_id.nunique()} sets, all known",
        )
    return new


def with_campaigns(network: ColocationNetwork, campaigns: tuple[str, ...]) -> ColocationNetwork:
    """The same network with additional campaigns.

    A new one starts with the weights of the unknown campaign.
    """
    grown = ColocationNetwork(network.config, campaigns)
    more = len(campaigns) - len(network.campaigns)
    weights = {}
    for name, tensor in network.state_dict().items():
        shape = grown.state_dict()[name].shape
        for axis in (a for a, size in enumerate(shape) if size != tensor.shape[a]):
            # Settings are the last columns of an input, and the unknown campaign is the last of them.
            last = tensor.shape[axis] - 1
            tensor = tensor.index_select(axis, torch.tensor([*range(last), *[last] * (more + 1)]))
        weights[name] = tensor
    grown.load_state_dict(weights)
    return grown.eval()


def _learned(
    before: CotenantModel,
    new: Examples,
    replay: SetTensors,
    config: FineTuning,
    training: TrainingConfig,
    report: LossCallback | None = None,
    held_out: Examples | None = None,
) -> CotenantModel:
    """`before` with co-location networks that learned from new sets but keep their answers on `replay`."""
    campaigns = (*before.campaigns, *sorted(set(new.campaign) - set(before.campaigns)))
    replay = with_more_campaigns(replay, len(campaigns) - len(before.campaigns))
    members, _ = before.variants(new.workloads, new.devices)
    scaler = before.scaler.widened(members.features, members.demand)
    process = before.process.with_sets(new) if before.process is not None else None
    model = replace(before, campaigns=campaigns, networks=[], scaler=scaler, process=process)
    ways = (new, new.without_solo())
    batches = measured_batches(model, ways, [measured_difference(model, e) for e in ways])
    validation = HeldOut.of(model, held_out, answered=True) if held_out is not None else None
    for number, network in enumerate(before.networks):
        torch.manual_seed(config.seed * 1000 + number)
        learner = with_campaigns(network, campaigns)
        _tune(learner, batches, replay, config, training.beta, f"network {number + 1}", report, validation)
        model.networks.append(learner)
    return model


def _tune(
    network: ColocationNetwork,
    batches: Sequence[TargetBatch],
    replay: SetTensors,
    config: FineTuning,
    beta: float,
    phase: str,
    report: LossCallback | None,
    validation: HeldOut | None,
) -> None:
    device = training_device()
    # Without dropout, because the served answers are the targets.
    network.to(device).eval()
    before = deepcopy(network)
    batches, replay = [moved(batch, device) for batch in batches], moved(replay, device)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.epochs)
    for epoch in range(config.epochs):
        optimizer.zero_grad()
        # Answers to users name no campaign, so train with and without it.
        kept = hide_campaigns(replay, 0.5)
        with torch.no_grad():
            then = before(kept)
        now = network(kept)
        loss = torch.zeros((), device=device)
        for name in ("log_slowdown", "log_baseline", "utilization"):
            loss = loss + nn.functional.smooth_l1_loss(getattr(now, name), getattr(then, name), beta=beta)
        loss = config.keeping * loss
        for batch in batches:
            output = network(hide_campaigns(batch.sets, 0.5))
            # A few sets cannot tell whether a campaign's solo runs were off, and users are answered without that.
            output = replace(output, log_baseline=torch.zeros_like(output.log_baseline))
            loss = loss + batch_loss(output, batch, beta) / len(batches)
        value = take_step(loss, network, optimizer, schedule, phase)
        if report:
            report(phase, epoch + 1, config.epochs, value)
        if validation is not None:
            validation.report(network, phase, epoch + 1, config.epochs, report)
    network.cpu()


def _widened(
    before: Fitted,
    new: Examples,
    solo: pd.DataFrame,
    config: FineTuning,
    training: TrainingConfig,
    report: LossCallback | None = None,
) -> Intervals:
    """Intervals that also cover the new sets, and are nowhere narrower than before.

    New architectures are held out in turn to score the networks trained without them. The encoder is
    unchanged, so its errors on the new jobs alone are those on unseen jobs.
    """
    replay = before.replay
    assert replay is not None
    single = replace(before.model, networks=before.model.networks[:1])

    def errors(fold: ExampleFold) -> dict[str, np.ndarray]:
        model = single
        if fold.train.set_ids:
            follow = within(report, fold.name)
            model = _learned(single, fold.train, replay, config, training, follow, fold.test)
        return left_out_errors(model, fold, solo, answered=True)

    parts = list(cross_fit(new, architecture_groups(new, config.cross_fits), errors))
    residuals, alone, utilization = residuals_of(parts)
    own = Intervals.fit(residuals, alone, utilization, before.intervals.floor)
    quantile = {
        k: max(v, own.quantile[k]) if len(residuals[k][0]) else v
        for k, v in before.intervals.quantile.items()
    }
    off = own.solo_log_error if len(alone) else 0.0
    return replace(
        before.intervals,
        quantile=quantile,
        solo_log_error=max(before.intervals.solo_log_error, off),
        utilization_error=max(before.intervals.utilization_error, own.utilization_error),
    ).consistent()


def _heads(
    before: HeadCalibration, new: Examples, solo: pd.DataFrame, model: CotenantModel
) -> HeadCalibration:
    """Constants refitted if there are enough rows, else unchanged; their errors never shrink."""
    after = fit_heads(new, solo, model.featurizer, before)
    errors = zip(before.memory_log_error, after.memory_log_error, strict=True)
    graph, alone = (max(pair) for pair in errors)
    return replace(after, memory_log_error=(graph, alone))


def _manifest(before: Manifest, version: str, colocation: pd.DataFrame, new: Examples) -> Manifest:
    def joined(old: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({*old, *more}))

    return Manifest(
        joined(before.set_ids, new.set_ids),
        joined(before.sources, colocation.source),
        joined(before.licences, colocation.licence),
        joined(before.architectures, new.architectures),
        max(before.largest_set, int(np.bincount(new.set_index).max())),
        (*before.ancestors, version),
        new.set_ids,
        before.coverage.joined(Coverage.of(new.workloads, new.devices, new.mode)),
        tuple(sorted({*before.partners, *new.partners})),
        (*before.added_before, before.added_set_ids) if before.ancestors else (),
    )
