"""Measured co-location sets as arrays: known inputs and measured targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.colocation_network import SetTensors
from models.features import (
    DEMAND_WIDTH,
    Floats,
    capacity_ratio,
    demand_ratios,
    occupancy,
    pace_of,
    solo_features,
)
from predictor.examples.featurizer import Featurizer, JobOnDevice
from profiling.errors import InputError
from profiling.workload import SHARING_MODES, SOLO_KEYS, SoloProfile, Workload

if TYPE_CHECKING:
    import pandas as pd

Integers = NDArray[np.int64]
# A set counts as resident if its memory is at least this share of its members' solo memory.
RESIDENT_RATIO = 0.93


@dataclass(frozen=True, slots=True)
class JobEncoding:
    """One encoded job on one device: the encoder's embedding [E], and the cost model's step time."""

    embedding: Floats
    step_time_s: float


@dataclass(frozen=True, slots=True)
class MemberVariants:
    """Distinct (job, device, solo measurements), to which members of sets refer by number.

    Attributes:
        jobs: V jobs on devices.
        features: [V, member_width] embedding, workload, solo and device features, not scaled.
        step_s: [V] solo step time, measured or predicted.
        demand: [V, DEMAND_WIDTH] demands, share of device memory, occupancy, pace; see
            `models.features.edge_features`.
    """

    jobs: tuple[JobOnDevice, ...]
    features: Floats
    step_s: Floats
    demand: Floats


@dataclass(frozen=True, slots=True)
class Examples:
    """S sets with T members; rows of a set are adjacent.

    Attributes:
        workloads: T workloads with their solo measurements.
        devices: T device names.
        architectures: T architecture names, for reports by model.
        set_ids: S identifiers.
        set_index: [T] set of each member.
        mode, campaign: [T] sharing mode; campaign name.
        ratio: [T] measured co-located / solo throughput; NaN where not measured.
        censored: [T] the ratio is only a lower bound.
        set_memory_bytes, set_utilization_ratio: [S]; NaN where not measured.
    """

    workloads: tuple[Workload, ...]
    devices: tuple[str, ...]
    architectures: tuple[str, ...]
    set_ids: tuple[str, ...]
    set_index: Integers
    mode: tuple[str, ...]
    campaign: tuple[str, ...]
    ratio: Floats
    censored: NDArray[np.bool_]
    set_memory_bytes: Floats
    set_utilization_ratio: Floats

    def subset(self, set_ids: Sequence[str]) -> Examples:
        """The examples of some sets only."""
        wanted = set(set_ids)
        keep_set = np.array([s in wanted for s in self.set_ids], dtype=bool)
        keep = keep_set[self.set_index]
        renumber = np.cumsum(keep_set) - 1
        pick = np.flatnonzero(keep)

        def take(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(values[i] for i in pick)

        return Examples(
            tuple(self.workloads[i] for i in pick),
            take(self.devices),
            take(self.architectures),
            tuple(s for s, k in zip(self.set_ids, keep_set, strict=True) if k),
            renumber[self.set_index[pick]],
            take(self.mode),
            take(self.campaign),
            self.ratio[pick],
            self.censored[pick],
            self.set_memory_bytes[keep_set],
            self.set_utilization_ratio[keep_set],
        )

    @classmethod
    def joined(cls, parts: Sequence[Examples]) -> Examples:
        """The sets of several parts, in this order."""
        per_row = ("workloads", "devices", "architectures", "set_ids", "mode", "campaign")
        values: dict[str, Any] = {
            n: tuple(chain.from_iterable(getattr(p, n) for p in parts)) for n in per_row
        }
        starts = np.cumsum([0, *(len(p.set_ids) for p in parts[:-1])])
        values["set_index"] = np.concatenate([p.set_index + s for p, s in zip(parts, starts, strict=True)])
        for name in ("ratio", "censored", "set_memory_bytes", "set_utilization_ratio"):
            values[name] = np.concatenate([getattr(p, name) for p in parts])
        return cls(**values)

    @property
    def first(self) -> Integers:
        """[S] row of each set's first member, which has the values shared by all members."""
        return np.searchsorted(self.set_index, np.arange(len(self.set_ids)))

    @property
    def places(self) -> tuple[Integers, Integers]:
        """[T] set and position in its set of each member."""
        return places_of(self.set_index)

    @property
    def scored(self) -> NDArray[np.bool_]:
        """[T] members whose ratio was measured, not only bounded."""
        measured: NDArray[np.bool_] = ~np.isnan(self.ratio) & ~self.censored
        return measured

    @property
    def partners(self) -> tuple[tuple[str, int], ...]:
        """Set and position of the members whose ratio was not measured: partners of the others only."""
        sets, position = self.places
        unmeasured = np.isnan(self.ratio)
        places = zip(sets[unmeasured].tolist(), position[unmeasured].tolist(), strict=True)
        return tuple((self.set_ids[s], p) for s, p in places)

    @property
    def resident(self) -> NDArray[np.bool_]:
        """[S] whether all members were on the device at once, so that the set tells about sharing.

        A set with no more memory than one of its members alone was measured before the other started or after
        it ended. If memory was not measured, a set counts as resident.
        """
        alone = np.zeros(len(self.set_ids))
        np.add.at(alone, self.set_index, [w.solo.memory_bytes or np.nan for w in self.workloads])
        absent: NDArray[np.bool_] = self.set_memory_bytes < RESIDENT_RATIO * alone
        return ~absent

    def settings(self, campaigns: Sequence[str]) -> Floats:
        """[S, settings] one-hot sharing mode and campaign of each set, see `settings_of`."""
        first = self.first.tolist()
        return settings_of([self.mode[i] for i in first], [self.campaign[i] for i in first], campaigns)

    def padded(self, values: NDArray[Any]) -> NDArray[Any]:
        """[S, M, ...] from [T, ...], as the network's inputs and outputs are laid out."""
        return padded_rows(values, *self.places)

    def without_solo(self) -> Examples:
        """The same sets without the jobs' solo measurements."""
        return replace(self, workloads=tuple(w.without_solo() for w in self.workloads))

    def without_campaign(self) -> Examples:
        """The same sets as users ask about them, who name no campaign."""
        return replace(self, campaign=("",) * len(self.campaign))


@dataclass(frozen=True, slots=True)
class SoloExamples:
    """Jobs measured alone: (workload, device) and seconds per step."""

    workloads: tuple[Workload, ...]
    devices: tuple[str, ...]
    step_time_s: np.ndarray


def in_order_of(colocation: pd.DataFrame, values: Floats) -> Floats:
    """[T] values of the members of `examples_of(colocation, ...)`, in the order of the table's rows."""
    result = np.empty(len(values))
    result[np.lexsort((colocation.member.to_numpy(), colocation.set_id.to_numpy(dtype=str)))] = values
    return result


def examples_of(colocation: pd.DataFrame, solo: pd.DataFrame) -> Examples:
    """Join the tidy tables `colocation` and `solo`; solo rows are taken from the same campaign and device only.

    Raises:
        InputError: a set has a member number twice.
    """
    profiles: dict[Any, SoloProfile] = dict(solo_profiles(solo))
    frame = colocation.sort_values(["set_id", "member"], kind="stable")
    if frame.duplicated(["set_id", "member"]).any():
        raise InputError(
            "colocation table", expected="each member of a set once", got="a repeated (set_id, member)"
        )
    ids, index = np.unique(frame.set_id.to_numpy(dtype=str), return_inverse=True)
    keys = list(zip(*(frame[name].astype(str) for name in ("campaign", "device", "workload")), strict=True))
    workloads = tuple(replace(Workload.parse(key[2]), solo=profiles.get(key, SoloProfile())) for key in keys)
    ratio = frame.throughput_ratio.to_numpy(dtype=float, na_value=np.nan).copy()
    ratio[~frame.is_target.to_numpy(dtype=bool)] = np.nan
    ratio[ratio <= 0] = np.nan
    first = np.zeros(len(ids), dtype=np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    return Examples(
        workloads,
        tuple(frame.device),
        tuple(frame.architecture),
        tuple(ids),
        index.astype(np.int64),
        tuple(frame.sharing),
        tuple(frame.campaign),
        ratio,
        frame.censored.to_numpy(dtype=bool, copy=True),
        frame.set_memory_bytes.to_numpy(dtype=float, na_value=np.nan)[first],
        frame.set_utilization_ratio.to_numpy(dtype=float, na_value=np.nan)[first],
    )


def solo_profiles(solo: pd.DataFrame) -> dict[tuple[str, str, str], SoloProfile]:
    """(campaign, device, SPEC) to the job's solo measurements on one GPU."""
    profiles: dict[tuple[str, str, str], SoloProfile] = {}
    for row in solo[solo.gpus == 1].to_dict("records"):
        values = {k: float(row[k]) for k in SOLO_KEYS if row.get(k) is not None and row[k] == row[k]}
        profiles.setdefault(
            (str(row["campaign"]), str(row["device"]), str(row["workload"])), SoloProfile(**values)
        )
    return profiles


def variants_of(
    workloads: Sequence[Workload],
    devices: Sequence[str],
    featurizer: Featurizer,
    encodings: Mapping[tuple[Workload, str], JobEncoding],
) -> tuple[MemberVariants, Integers]:
    """Distinct members, and [T] the number of each member among them.

    Args:
        workloads: [T] workloads with their solo measurements.
        devices: [T] device names.
        featurizer: reads graphs.
        encodings: by (workload without solo measurements, device); their step times are used where none was
            measured.
    """
    index: dict[tuple[Workload, str], int] = {}
    where = np.array(
        [index.setdefault((w, d), len(index)) for w, d in zip(workloads, devices, strict=True)],
        dtype=np.int64,
    )
    jobs, features, steps, demand = [], [], [], []
    for workload, device in index:
        job = featurizer.job(workload, device)
        encoding = encodings[(workload.without_solo(), device)]
        full = replace(job.workload, solo=workload.solo)
        measured = workload.solo.step_time_s
        solo = solo_features(full, job.device, job.demand)
        jobs.append(job)
        features.append(np.concatenate([encoding.embedding, job.features, solo, featurizer.device(device)]))
        step = measured or encoding.step_time_s
        steps.append(step)
        demand.append(
            np.concatenate(
                [
                    demand_ratios(job.demand, step, full),
                    [capacity_ratio(job.demand, full, job.device), occupancy(full, job.device)],
                    pace_of(job.demand, step, job.graph),
                ]
            )
        )
    variants = MemberVariants(
        tuple(jobs), np.array(features), np.array(steps), np.array(demand).reshape(-1, DEMAND_WIDTH)
    )
    return variants, where


def set_tensors(member: Floats, demand: Floats, setting: Floats, set_index: Integers) -> SetTensors:
    """The network's input from T members.

    Args:
        member: [T, member_width] scaled features.
        demand: [T, DEMAND_WIDTH].
        setting: [S, settings] one-hot sharing mode and campaign of each set.
        set_index: [T] set of each member, ascending.
    """
    place = places_of(set_index)
    return SetTensors(
        torch.tensor(padded_rows(member, *place), dtype=torch.float32),
        torch.tensor(padded_rows(demand, *place), dtype=torch.float32),
        torch.tensor(setting, dtype=torch.float32),
        torch.from_numpy(padded_rows(np.ones(len(member), dtype=bool), *place)),
    )


def places_of(set_index: Integers) -> tuple[Integers, Integers]:
    """[T] set and position in its set of each member; `set_index` ascends."""
    return set_index, np.arange(len(set_index)) - np.searchsorted(set_index, set_index)


def padded_rows(values: NDArray[Any], sets: Integers, positions: Integers) -> NDArray[Any]:
    """[S, M, ...] from [T, ...]; zero (or False) where a set has fewer members."""
    shape = (int(sets.max(initial=-1)) + 1, int(positions.max(initial=-1)) + 1, *values.shape[1:])
    result = np.zeros(shape, dtype=values.dtype)
    result[sets, positions] = values
    return result


def settings_of(mode: Sequence[str], campaign: Sequence[str], campaigns: Sequence[str]) -> Floats:
    """[S, len(SHARING_MODES) + len(campaigns) + 1] one-hot; an unknown campaign takes the last column."""
    width = len(SHARING_MODES) + len(campaigns) + 1
    result = np.zeros((len(mode), width))
    known = {name: len(SHARING_MODES) + i for i, name in enumerate(campaigns)}
    for row, (m, c) in enumerate(zip(mode, campaign, strict=True)):
        result[row, SHARING_MODES.index(m)] = 1.0
        result[row, known.get(c, width - 1)] = 1.0
    return result
