"""Training data of the co-location network in an epoch.

Every measured set is seen with and without its members' solo measurements. Synthetic pairs from
`predictor.training.teachers.mixtures`, labelled by a forest, come in batches, one per epoch. What no shippable
measurement covers, jobs with known utilisation and GPUs of no campaign, is labelled by processor sharing
(`predictor.training.teachers.processor_sharing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.colocation_network import SetTensors
from models.features import Floats, device_features
from predictor.examples.examples import Examples, Integers, padded_rows, places_of, set_tensors, settings_of
from predictor.fitted.model import CotenantModel, Scaler
from predictor.fitted.utilization import measured_difference
from predictor.training.accelerator import moved
from predictor.training.teachers.processor_sharing import (
    SharedSets,
    inferred_sets,
    sharing_log_ratio,
    stated_sets,
)
from profiling.devices import list_devices

if TYPE_CHECKING:
    from predictor.config import TrainingConfig
    from predictor.training.teachers.forest import ForestTeacher
    from predictor.training.teachers.mixtures import Seen

# Number of the view without solo measurements.
WITHOUT_SOLO = 1
# Weight of the forest's predictions for inferred sets in training campaigns.
CAMPAIGN_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class TargetBatch:
    """Sets with their targets.

    Attributes:
        target, known, censored: [S, M] log ratio, whether it is known, whether it is only a lower bound.
        weight: weight of this batch's loss.
        utilization_residual: [S] measured utilisation minus that of independent phases, NaN if not measured.
    """

    sets: SetTensors
    target: Tensor
    known: Tensor
    censored: Tensor
    weight: float = 1.0
    utilization_residual: Tensor | None = None


class TrainingBatches:
    """All batches of a training; fits the scaler of `model` to them.

    Args:
        model: with a fitted encoder; its scaler is replaced.
        examples: the measured sets.
        config: amount and weight of synthetic sets.
    """

    def __init__(self, model: CotenantModel, examples: Examples, config: TrainingConfig) -> None:
        # The second is `WITHOUT_SOLO`.
        ways = (examples, examples.without_solo())
        stated = stated_sets(model, examples, config.shared_sets, config.seed)
        inferred = inferred_sets(model, examples, config.inferred_sets, config.seed)
        shared = [sets for sets in (stated, inferred) if sets is not None]
        model.scaler = scaler_of(model, ways, shared)
        utilization_residual = [measured_difference(model, e) for e in ways]
        self.always = measured_batches(model, ways, utilization_residual)
        self.always += [_shared_batch(model, sets) for sets in shared]
        self.synthetic_batches = []
        taught = _forest(
            model,
            ways,
            utilization_residual,
            np.where(usable_rows(examples), np.log(examples.ratio), np.nan),
            config,
        )
        if taught is not None:
            self.synthetic_batches = _mixed_batches(model, *taught, config)
            self.always += _campaign_batches(model, *taught, inferred, config)

    def on(self, device: torch.device) -> TrainingBatches:
        """The same batches on a device."""
        batches = copy(self)
        batches.always, batches.synthetic_batches = (
            [moved(batch, device) for batch in each] for each in (self.always, self.synthetic_batches)
        )
        return batches

    def of(self, epoch: int) -> list[TargetBatch]:
        """The batches of an epoch."""
        return (
            [*self.always, *self.synthetic_batches[epoch % len(self.synthetic_batches) :][:1]]
            if self.synthetic_batches
            else self.always
        )


def usable_rows(examples: Examples) -> NDArray[np.bool_]:
    """[T] rows with a measured or bounded ratio, of sets whose members were on the device at once."""
    usable: NDArray[np.bool_] = ~np.isnan(examples.ratio) & examples.resident[examples.set_index]
    return usable


def measured_batches(
    model: CotenantModel, ways: Sequence[Examples], utilization_residual: Sequence[Tensor]
) -> list[TargetBatch]:
    """The measured sets, once for each way in which they are seen, with the same targets.

    Args:
        model: with its scaler.
        ways: the same sets with different solo measurements.
        utilization_residual: for each way, see `TargetBatch`.
    """
    measured = ways[0]
    target = torch.tensor(measured.padded(np.log(measured.ratio)), dtype=torch.float32)
    known, censored = (
        torch.from_numpy(measured.padded(v)) for v in (usable_rows(measured), measured.censored)
    )
    return [
        TargetBatch(model.inputs(e), target, known, censored, utilization_residual=difference)
        for e, difference in zip(ways, utilization_residual, strict=True)
    ]


def scaler_of(model: CotenantModel, ways: Sequence[Examples], shared: Sequence[SharedSets] = ()) -> Scaler:
    """Fit a scaler to the members of measured sets, in every view, and of synthetic ones."""
    members = [model.variants(examples.workloads, examples.devices)[0] for examples in ways]
    return Scaler.fit(
        np.concatenate([m.features for m in members]),
        np.concatenate([m.demand for m in members]),
        (np.concatenate([s.features for s in shared]), np.concatenate([s.demand for s in shared]))
        if shared
        else None,
        model.config.encoder.embedding,
    )


def _shared_batch(model: CotenantModel, shared: SharedSets) -> TargetBatch:
    setting = settings_of(shared.mode, [""] * len(shared.mode), model.campaigns)
    return _batch(
        model,
        shared.features,
        shared.demand,
        setting,
        shared.set_index,
        sharing_log_ratio(shared),
    )


def _batch(
    model: CotenantModel,
    features: Floats,
    demand: Floats,
    setting: Floats,
    set_index: Integers,
    log_ratio: Floats,
    weight: float = 1.0,
    utilization_residual: Tensor | None = None,
) -> TargetBatch:
    """Synthetic members [T] with their labels, all known."""
    sets = set_tensors(model.scaler(features), model.scaler.demand(demand), setting, set_index)
    target = torch.tensor(padded_rows(log_ratio, *places_of(set_index)), dtype=torch.float32)
    return TargetBatch(
        sets, target, sets.present, torch.zeros_like(sets.present), weight, utilization_residual
    )


def _forest(
    model: CotenantModel,
    ways: Sequence[Examples],
    utilization_residual: Sequence[Tensor],
    log_ratio: Floats,
    config: TrainingConfig,
) -> tuple[ForestTeacher, list[Seen]] | None:
    """A forest fitted to measured pairs, and what it saw; None if there are none or it is not wanted."""
    from predictor.training.teachers.forest import ForestTeacher
    from predictor.training.teachers.mixtures import Seen

    measured = ways[0]
    in_pair = np.bincount(measured.set_index)[measured.set_index] == 2
    if not config.mixed_sets or not (measured.scored & in_pair).any():
        return None
    seen = []
    for examples, difference in zip(ways, utilization_residual, strict=True):
        variants, where = model.variants(examples.workloads, examples.devices)
        setting = examples.settings(model.campaigns)[examples.set_index]
        seen.append(Seen(examples, variants, where, setting, difference.numpy().astype(np.float64)))
    forest = ForestTeacher(model.config.encoder.embedding, config.teacher_trees, config.seed)
    return forest.fit(seen, log_ratio), seen


def _mixed_batches(
    model: CotenantModel, forest: ForestTeacher, seen: list[Seen], config: TrainingConfig
) -> list[TargetBatch]:
    """Synthetic pairs with the forest's predictions, in batches."""
    from predictor.training.teachers.mixtures import mix

    gpus = np.array([device_features(d) for d in list_devices() if not d.is_cpu])
    synthetic_batches = []
    for number in range(config.synthetic_batches):
        pairs = mix(seen, gpus, config.mixed_sets, config.seed, number)
        taught, utilization_residual_taught = forest.answer(pairs)
        index = np.arange(len(pairs.features)) // 2
        busy = torch.tensor(utilization_residual_taught, dtype=torch.float32)
        synthetic_batches.append(
            _batch(
                model, pairs.features, pairs.demand, pairs.setting[::2], index, taught, config.teaching, busy
            )
        )
    return synthetic_batches


def _campaign_batches(
    model: CotenantModel,
    forest: ForestTeacher,
    seen: list[Seen],
    inferred: SharedSets | None,
    config: TrainingConfig,
) -> list[TargetBatch]:
    """The pairs of `inferred` in training campaigns, with the forest's predictions.

    Processor sharing says nothing about a campaign that was measured, not even on GPU types that it lacks.
    """
    from predictor.training.teachers.mixtures import MixedPairs

    if inferred is None:
        return []
    paired = np.flatnonzero(np.bincount(inferred.set_index)[inferred.set_index] == 2)
    if not len(paired):
        return []
    settings = seen[WITHOUT_SOLO].setting
    drawn = np.random.default_rng([config.seed, 2]).integers(len(settings), size=len(paired) // 2)
    pairs = MixedPairs(
        inferred.features[paired],
        inferred.demand[paired],
        settings[np.repeat(drawn, 2)],
        np.full(len(paired), WITHOUT_SOLO),
    )
    index = np.arange(len(paired)) // 2
    taught, _ = forest.answer(pairs)
    return [_batch(model, pairs.features, pairs.demand, pairs.setting[::2], index, taught, CAMPAIGN_WEIGHT)]
