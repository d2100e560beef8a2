"""Distinct observed members of sets, with the predictor's answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from models.features import Floats
from predictor.examples.examples import Integers
from predictor.examples.observations import Observation
from predictor.examples.out_of_memory import OutOfMemory
from predictor.gaussian_process.confirmed_pairs import OFTEN
from predictor.gaussian_process.link import to_scale
from predictor.learning.evidence.network_share import at_share
from predictor.padding import equally_wide
from predictor.types import PredictionArrays
from profiling.spelling import in_short
from profiling.workload import ColocationSet, Workload

# A member beside others: device, sharing mode, workload, its partners in canonical order.
ObservedKey = tuple[str, str, Workload, tuple[Workload, ...]]


def key_of(observation: Observation) -> ObservedKey:
    """Key of an observation, as its jobs were spelled."""
    colocation_set, member = observation.colocation_set, observation.member
    others = (*colocation_set.workloads[:member], *colocation_set.workloads[member + 1 :])
    return colocation_set.device, colocation_set.sharing, observation.workload, _ordered(others)


def name_of(key: ObservedKey) -> ObservedKey:
    """The same for the same job beside the same others, in any order and however they were spelled."""
    device, sharing, own, others = key
    return device, sharing, in_short(own), _ordered(map(in_short, others))


def _ordered(workloads: Iterable[Workload]) -> tuple[Workload, ...]:
    return tuple(sorted(workloads, key=repr))


def set_of(key: ObservedKey) -> ColocationSet:
    """The set with the observed member first."""
    device, sharing, own, others = key
    return ColocationSet(device, (own, *others), sharing)


def by_name(
    observations: Iterable[Observation],
) -> tuple[dict[ObservedKey, ObservedKey], dict[ObservedKey, list[float]]]:
    """Keys of observations, as first spelled, and log step times, both by the names of the keys."""
    keys: dict[ObservedKey, ObservedKey] = {}
    values: dict[ObservedKey, list[float]] = {}
    for observation in observations:
        key = key_of(observation)
        name = name_of(key)
        keys.setdefault(name, key)
        values.setdefault(name, []).append(math.log(observation.step_time_s))
    return keys, values


def by_name_of_set(reports: Iterable[OutOfMemory]) -> dict[ObservedKey, ObservedKey]:
    """The key of one member of each set, the same in any order, by its name."""
    keys = dict[ObservedKey, ObservedKey]()
    for asked in (report.colocation_set for report in reports):
        own, *others = sorted(asked.workloads, key=repr)
        key = asked.device, asked.sharing, own, tuple(others)
        keys.setdefault(name_of(key), key)
    return keys


class Expected(NamedTuple):
    """A predictor's answers for the first members of R sets.

    Attributes:
        log_solo_s, log_slowdown: [R] predicted.
        towards_networks: [R] see `Observed`.
        solo_step_time_s: [R, M] predicted for all members.
    """

    log_solo_s: Floats
    log_slowdown: Floats
    towards_networks: Floats
    solo_step_time_s: Floats

    @classmethod
    def of(cls, predictor: Any, sets: Sequence[ColocationSet]) -> Expected:
        arrays = predictor.predict_arrays(sets)
        log_slowdown, towards = _log_slowdown(arrays), np.zeros(len(sets))
        if hasattr(predictor, "with_network_share"):
            of_networks = predictor.with_network_share(1.0).predict_arrays(sets)
            towards = _log_slowdown(of_networks) - log_slowdown
        return cls(np.log(arrays.solo_step_time_s[:, 0]), log_slowdown, towards, arrays.solo_step_time_s)


def _log_slowdown(arrays: PredictionArrays) -> Floats:
    return np.log(np.maximum(arrays.slowdown[:, 0], 1.0))


@dataclass(frozen=True, slots=True)
class Observed:
    """N rows in order of arrival; additions create a new object.

    Attributes:
        keys: key of each row, as first spelled, because that job's graph is at hand; index: row by `name_of` its key.
        values: observed log step times.
        own: [N] number of the member; partners: [N, P] numbers of those beside it, -1 where there are fewer.
        log_solo_s, log_slowdown: [N] predicted.
        towards_networks: [N] change of `log_slowdown` if the networks answered alone.
        rank: [N] hash of the key's name, the same in every operating-system process.
        log_step_s: [N] median observed; count: [N] observations.
    """

    keys: tuple[ObservedKey, ...]
    index: Mapping[ObservedKey, int]
    values: tuple[tuple[float, ...], ...]
    own: Integers
    partners: Integers
    log_solo_s: Floats
    log_slowdown: Floats
    towards_networks: Floats
    rank: Integers
    log_step_s: Floats
    count: Integers

    @classmethod
    def nothing(cls) -> Observed:
        none, no_number = np.zeros(0), np.zeros(0, np.int64)
        return cls(
            (), {}, (), no_number, np.zeros((0, 1), np.int64), none, none, none, no_number, none, no_number
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.keys)

    def observations(self) -> Iterator[Observation]:
        """One by one; the observed member is the first."""
        for key, values in zip(self.keys, self.values, strict=True):
            for value in values:
                yield Observation(set_of(key), 0, math.exp(value))

    def with_rows(
        self,
        named: Mapping[ObservedKey, ObservedKey],
        expected_of: Callable[[Sequence[ColocationSet]], tuple[Integers, Expected]],
    ) -> Observed:
        """Add rows without observations.

        Args:
            named: keys by name; those that there are already are skipped.
            expected_of: from R sets, the numbers [R, M] of the first member and those beside it, -1 where there are fewer,
                and what is predicted for it.
        """
        keys = {name: key for name, key in named.items() if name not in self.index}
        if not keys:
            return self
        numbers, expected = expected_of([set_of(key) for key in keys.values()])
        parts, start, more = equally_wide(self.partners, numbers[:, 1:]), len(self), len(keys)
        return replace(
            self,
            keys=(*self.keys, *keys.values()),
            index={**self.index, **{name: start + row for row, name in enumerate(keys)}},
            values=(*self.values, *([()] * more)),
            own=np.concatenate([self.own, numbers[:, 0]]),
            partners=np.concatenate(parts),
            log_solo_s=np.concatenate([self.log_solo_s, expected.log_solo_s]),
            log_slowdown=np.concatenate([self.log_slowdown, expected.log_slowdown]),
            towards_networks=np.concatenate([self.towards_networks, expected.towards_networks]),
            rank=np.concatenate([self.rank, np.array([_rank(name) for name in keys], np.int64)]),
            log_step_s=np.concatenate([self.log_step_s, np.zeros(more)]),
            count=np.concatenate([self.count, np.zeros(more, np.int64)]),
        )

    def with_step_times(self, new: Mapping[ObservedKey, Sequence[float]]) -> Observed:
        """Add log step times to existing rows, by the names of keys."""
        if not new:
            return self
        values, step, count = list(self.values), self.log_step_s.copy(), self.count.copy()
        for name, more in new.items():
            row = self.index[name]
            values[row] = (*values[row], *more)
            step[row], count[row] = median(values[row]), len(values[row])
        return replace(self, values=tuple(values), log_step_s=step, count=count)

    def expected(self, rows: Integers, knee: float, network_share: float) -> Floats:
        """[R] slowdowns predicted for some rows with a weight of the networks.

        They are on the scale of `predictor.gaussian_process.link`.
        """
        slowdown = at_share(self.log_slowdown[rows], self.towards_networks[rows], network_share)
        return to_scale(np.maximum(slowdown, 0.0), knee)

    def sample(self, most: int, earlier: Integers | None = None) -> Integers:
        """Numbers of at most `most` rows: as many of every member, and beside every member, as there is room for.

        So a job observed a few times among thousands of others keeps its rows. First are those of a job alone,
        then those observed often, whose sets are answered as observed, then those of lowest rank.

        Args:
            most: largest number of rows.
            earlier: the sample of fewer observations, by default none. Its rows keep their places, because what was
                computed for the row of a place is reused.
        """
        if len(self) <= most:
            return np.arange(len(self))
        # What a job suffers and what it does to others are two things to learn.
        roles = np.concatenate([self.own[:, None], self.partners + self.own.max() + 1], 1)
        row, column = np.nonzero(np.concatenate([self.own[:, None], self.partners], 1) >= 0)
        role, together = roles[row, column], np.asarray((self.partners >= 0).any(1))
        seldom = self.count < OFTEN
        order = np.lexsort((self.rank[row], seldom[row], together[row], role))
        row, role = row[order], role[order]
        place = np.arange(len(row)) - np.searchsorted(role, role)
        first = np.full(len(self), len(row))
        np.minimum.at(first, row, place)
        chosen = np.sort(np.lexsort((self.rank, seldom, together, first))[:most])
        return chosen if earlier is None else _in_places_of(earlier, chosen)


def _in_places_of(earlier: Integers, chosen: Integers) -> Integers:
    """The chosen rows, those of `earlier` in their places and new ones in the places of rows no longer chosen."""
    result, new = earlier.copy(), np.setdiff1d(chosen, earlier)
    left = np.flatnonzero(~np.isin(earlier, chosen))
    result[left[: len(new)]] = new[: len(left)]
    return np.concatenate([np.delete(result, left[len(new) :]), new[len(left) :]])


def _rank(name: ObservedKey) -> int:
    digest = hashlib.blake2b(repr(name).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
