"""`CotenantModel`: encoder, ensemble of networks, input scaling and Gaussian process in one object."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from models.colocation_network import ColocationNetwork, NetworkConfig, SetTensors
from models.features import DEMAND_WIDTH, OCCUPANCY, Floats
from models.graph_tensors import GraphTensors, side_by_side
from models.workload_encoder import WorkloadEncoder
from predictor.examples.examples import (
    Examples,
    Integers,
    JobEncoding,
    MemberVariants,
    set_tensors,
    variants_of,
)
from predictor.examples.featurizer import Featurizer, JobOnDevice
from predictor.gaussian_process.set_process import NETWORK_SHARE, SetProcess
from profiling.workload import Workload

# Graphs are encoded in batches; more than this many operators at once only cost memory.
OPERATORS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True)
class Scaler:
    """Range, mean and scale of a member's features, fitted on training rows.

    A network extrapolates, so values are clamped to the training range, as in a forest.

    Attributes:
        mean, scale: [F] of the member features.
        low, high: [F + DEMAND_WIDTH] range of member features and demand; infinite unless fitted.
    """

    mean: Floats
    scale: Floats
    low: Floats
    high: Floats

    def __call__(self, values: Floats) -> Floats:
        """Standardised member features [..., F]."""
        count = len(self.mean)
        inside = np.clip(values, self.low[:count], self.high[:count])
        return np.clip((inside - self.mean) / self.scale, -4.0, 4.0)

    def demand(self, values: Floats) -> Floats:
        """Demand [..., DEMAND_WIDTH] clamped to the range, except for occupancy, from which bounds of slowdowns follow."""
        count = len(self.mean)
        inside = np.clip(values, self.low[count:], self.high[count:])
        inside[..., OCCUPANCY] = values[..., OCCUPANCY]
        return inside

    @classmethod
    def neutral(cls, width: int) -> Scaler:
        """A scaler that only clamps values beyond 4 from 0."""
        endless = np.full(width + DEMAND_WIDTH, np.inf)
        return cls(np.zeros(width), np.ones(width), -endless, endless)

    @classmethod
    def fit(
        cls,
        features: Floats,
        demand: Floats,
        invented: tuple[Floats, Floats] | None = None,
        embedding: int = 0,
    ) -> Scaler:
        """Fit to the distinct members of the measured sets.

        Args:
            features, demand: [V, F] and [V, DEMAND_WIDTH] of measured members.
            invented: the same for synthetic members; they widen the range, and set the scale of features that
                never vary among the measured. A feature that never varies at all carries no information: its
                scale is infinite.
            embedding: number of leading columns that already lie between -1 and 1, and whose small variation
                is not amplified.
        """
        mean, scale = features.mean(0), features.std(0)
        rows = np.concatenate([features, demand], 1)
        if invented is not None:
            scale = np.where(scale > 1e-6, scale, np.sqrt(((invented[0] - mean) ** 2).mean(0)))
            rows = np.concatenate([rows, np.concatenate(invented, 1)])
        scale = np.where(scale > 1e-6, scale, np.inf)
        scale[:embedding] = np.maximum(scale[:embedding], 1.0)
        return cls(mean, scale, rows.min(0), rows.max(0))

    def widened(self, features: Floats, demand: Floats) -> Scaler:
        """The same with the range extended to more members."""
        rows = np.concatenate([features, demand], 1)
        return replace(self, low=np.minimum(self.low, rows.min(0)), high=np.maximum(self.high, rows.max(0)))


@dataclass
class CotenantModel:
    """Predicts slowdowns: the geometric mean of the networks' and the process's predictions.

    Attributes:
        config: sizes and switches.
        campaigns: training campaigns.
        encoder: level 1.
        networks: ensemble of level 2.
        scaler: scaler of member features.
        featurizer: graph and feature cache; not part of the weights.
        process: over the training sets; None if the networks answer alone.
    """

    config: NetworkConfig
    campaigns: tuple[str, ...]
    encoder: WorkloadEncoder
    networks: list[ColocationNetwork]
    scaler: Scaler
    featurizer: Featurizer = field(default_factory=Featurizer)
    process: SetProcess | None = None
    _encodings: dict[tuple[Workload, str], JobEncoding] = field(default_factory=dict)

    def encode(self, jobs: Iterable[tuple[Workload, str]]) -> dict[tuple[Workload, str], JobEncoding]:
        """Encode (workload, device) pairs that are not cached yet; returns the cache."""
        todo: dict[tuple[Workload, str], JobOnDevice] = {}
        for workload, device in jobs:
            key = (workload.without_solo(), device)
            if key not in self._encodings:
                todo.setdefault(key, self.featurizer.job(*key))
        self.encoder.eval()
        for batch in _batches(list(todo.items())):
            with torch.no_grad():
                result = self.encoder(*encoder_input([job for _, job in batch], self.featurizer))
            for row, (key, _) in enumerate(batch):
                embedding = result.embedding[row].numpy().astype(np.float64)
                self._encodings[key] = JobEncoding(embedding, todo[key].cost.step_time_s)
        return self._encodings

    def variants(
        self, workloads: Sequence[Workload], devices: Sequence[str]
    ) -> tuple[MemberVariants, Integers]:
        """Distinct members of some sets with their numbers; encodes new ones."""
        return variants_of(
            workloads, devices, self.featurizer, self.encode(zip(workloads, devices, strict=True))
        )

    def predict_log_ratio(
        self, examples: Examples, network_share: float = NETWORK_SHARE
    ) -> tuple[Floats, Floats]:
        """[T] the observed log ratio, and the latent log slowdown: means over the ensemble and the process.

        Args:
            examples: measured or hypothetical rows.
            network_share: weight of the ensemble.
        """
        inputs, places = self.inputs(examples), examples.places
        ratio, latent = [], []
        with torch.no_grad():
            for network in self.networks:
                output = network.eval()(inputs)
                ratio.append((output.log_baseline - output.log_slowdown).numpy()[places])
                latent.append(output.log_slowdown.numpy()[places])
        result = np.mean(ratio, 0).astype(np.float64), np.mean(latent, 0).astype(np.float64)
        if self.process is None:
            return result
        expected = self._process_log_slowdown(examples, inputs)
        known = ~np.isnan(expected)
        both = [
            np.where(known, network_share * of_networks + (1.0 - network_share) * of_process, of_networks)
            for of_networks, of_process in zip(result, (-expected, expected), strict=True)
        ]
        return both[0], both[1]

    def _process_log_slowdown(self, examples: Examples, inputs: SetTensors) -> Floats:
        """[T] the process's answer; NaN if it has none."""
        assert self.process is not None
        keys = list(zip(examples.workloads, examples.devices, examples.mode, strict=True))
        variants, where = self.variants(examples.workloads, examples.devices)
        numbers = np.array(self.process.numbers(keys, variants.step_s[where].tolist()), np.int64)
        sets, position = examples.places
        table = np.full(inputs.present.shape, -1, dtype=np.int64)
        table[sets, position] = numbers
        own = (inputs.demand[..., OCCUPANCY] * inputs.present).numpy().astype(np.float64)
        occupied = own.sum(1, keepdims=True) - own
        return np.log(self.process.slowdown(table, occupied)[sets, position])

    def inputs(self, examples: Examples) -> SetTensors:
        """The network's input for measured or hypothetical sets."""
        variants, where = self.variants(examples.workloads, examples.devices)
        return set_tensors(
            self.scaler(variants.features)[where],
            self.scaler.demand(variants.demand)[where],
            examples.settings(self.campaigns),
            examples.set_index,
        )


def encoder_input(
    jobs: Sequence[JobOnDevice], featurizer: Featurizer
) -> tuple[GraphTensors, Tensor, Tensor, Tensor]:
    """Arguments of `WorkloadEncoder.forward` for some jobs."""
    return (
        side_by_side([job.tensors() for job in jobs]),
        torch.tensor(np.array([job.features for job in jobs]), dtype=torch.float32),
        torch.tensor(np.array([featurizer.device(job.device.name) for job in jobs]), dtype=torch.float32),
        torch.tensor([math.log(job.cost.step_time_s) for job in jobs], dtype=torch.float32),
    )


def _batches(
    todo: list[tuple[tuple[Workload, str], JobOnDevice]],
) -> Iterable[list[tuple[tuple[Workload, str], JobOnDevice]]]:
    batch: list[tuple[tuple[Workload, str], JobOnDevice]] = []
    size = 0
    for item in todo:
        operators = len(item[1].graph.operators)
        if batch and size + operators > OPERATORS_AT_ONCE:
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += operators
    if batch:
        yield batch
