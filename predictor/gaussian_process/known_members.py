"""Members that a posterior has seen, with their numbers in its arrays."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.cost.order import LOAD_WIDTH, load_of, without_load
from models.features import Floats
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.members import MEMBER_WIDTH, MemberScale, member_features, occupancies
from predictor.gaussian_process.spelling import Spelling
from profiling.devices import get_device, has_mig, leaves_slices_open, split_device
from profiling.errors import CotenantError
from profiling.workload import ColocationSet, Workload

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.examples.featurizer import Featurizer, JobOnDevice

MemberKey = tuple[Workload, str, str]
_Value = TypeVar("_Value", bound=np.generic)
# `LOAD_WIDTH` and what `_part_of_card` gives.
MEMBER_LOAD = LOAD_WIDTH + 2
# A job with unknown graph is similar only to itself, i.e. this far from any other.
_APART = 100.0


class Numbers(dict[object, int]):
    """Numbers names in the order of first use.

    Args:
        names: names that take the first numbers.
    """

    def __init__(self, names: Iterable[object] = ()) -> None:
        super().__init__((name, number) for number, name in enumerate(names))

    def __missing__(self, name: object) -> int:
        self[name] = len(self)
        return self[name]


@dataclass(frozen=True, slots=True)
class NamedMembers:
    """Members, and the names behind their numbers.

    Attributes:
        members: places and numbers.
        models: architecture names.
        jobs: jobs without solo measurements.
        settings: devices with their sharing modes.
    """

    members: Members
    models: tuple[str, ...] = ()
    jobs: tuple[Workload, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()


class ByMember(Generic[_Value]):
    """A column over known members, each value computed once: members keep their numbers, and more of them come.

    Args:
        values_of: [R] values of members by number [R].
    """

    def __init__(self, values_of: Callable[[Integers], NDArray[_Value]]) -> None:
        self._values_of = values_of
        self._values: NDArray[_Value] | None = None

    def first(self, count: int) -> NDArray[_Value]:
        """[count] values of the first members."""
        values = self._values  # read once, because other threads replace it
        if values is None:
            values = self._values = self._values_of(np.arange(count))
        elif len(values) < count:
            more = self._values_of(np.arange(len(values), count))
            values = self._values = np.concatenate([values, more])
        return values[:count]


class KnownMembers:
    """Members (workload with solo measurements, device, sharing mode), numbered in order of first use.

    Args:
        parameters, scale: of the kernel.
        featurizer: reads graphs; without one, jobs are compared by name only.
        start: members that take the first numbers.

    Attributes:
        members: all members so far.
        solo_predicted: [V] whether the solo step time is a prediction.
        utilization_measured: [V] whether the solo utilisation was measured.
        log_step_s: [V] solo step times, stated or predicted; log_floor_s: [V] at the device's peak rates, -inf
            if unknown.
        network: [V] numbers that jobs share which differ in `load` only; -1 at the start.
        family: [V] the same for members whose step times are ordered by `load`, which all slices of a card share.
        load: [V, MEMBER_LOAD] see `models.cost.order`; then what of its card a slice lacks.
        spelled: one spelling of a job.
    """

    def __init__(
        self,
        parameters: KernelParameters,
        scale: MemberScale,
        featurizer: Featurizer | None,
        start: NamedMembers | None = None,
    ) -> None:
        self.parameters, self.scale, self.featurizer = parameters, scale, featurizer
        self.spelled = Spelling(featurizer)
        start = start or NamedMembers(Members(np.zeros((0, MEMBER_WIDTH + 1))))
        self.members = start.members
        self.solo_predicted: NDArray[np.bool_] = np.zeros(len(start.members), dtype=bool)
        self.utilization_measured: NDArray[np.bool_] = np.zeros(len(start.members), dtype=bool)
        nothing = np.zeros(len(start.members))
        self.log_step_s: Floats = nothing
        self.log_floor_s: Floats = nothing - np.inf
        self.network: Integers = np.full(len(start.members), -1)
        self.family = self.network
        self.load: Floats = np.zeros((len(start.members), MEMBER_LOAD))
        self._index: dict[MemberKey, int] = {}
        self._at_start, self._keys = len(start.members), list[MemberKey]()
        self._networks, self._families = Numbers(), Numbers()
        self._models, self._jobs, self._settings = map(Numbers, (start.models, start.jobs, start.settings))
        # The jobs of a fitted process keep the names that it was fitted with, however they are spelled now.
        self._fitted = {self.spelled(job): job for job in reversed(start.jobs)}
        self._devices = Numbers()
        of_setting = np.array([self._devices[device] for device, _ in start.settings], np.int64)
        if len(of_setting):
            self.members = replace(self.members, device=of_setting[self.members.setting])
        self._of_row: Integers = np.zeros(0, np.int64)
        self._lock = threading.Lock()

    def __contains__(self, key: MemberKey) -> bool:
        return key in self._index

    def numbers(self, keys: Sequence[MemberKey], solo_step_time_s: Sequence[float] = ()) -> list[int]:
        """Number of each member.

        Args:
            keys: members.
            solo_step_time_s: predicted for each; read for new ones only, so empty if there are none.
        """
        index = self._index
        try:  # look each key up once, because its hash covers all fields of the workload
            return [index[key] for key in keys]
        except KeyError:
            with self._lock:
                new = {
                    key: step for key, step in zip(keys, solo_step_time_s, strict=True) if key not in index
                }
                self._add(new)
        return [index[key] for key in keys]

    def of_sets(self, sets: Sequence[ColocationSet], solo_step_time_s: Floats) -> Integers:
        """[S, M] numbers of the members of sets, -1 where one has fewer.

        Args:
            sets: S sets.
            solo_step_time_s: [S, M] predicted.
        """
        size = np.array([len(s.workloads) for s in sets])
        mask = np.arange(solo_step_time_s.shape[1]) < size[:, None]
        result = np.full(mask.shape, -1, dtype=np.int64)
        keys = [(w, s.device, s.sharing) for s in sets for w in s.workloads]
        result[mask] = self.numbers(keys, solo_step_time_s[mask].tolist())
        return result

    def of_rows(self, rows: Integers, table: Any) -> Integers:
        """[S, M] numbers of rows of a job table, -1 where there is none.

        Args:
            rows: [S, M].
            table: always the same `predictor.answering.job_table.JobTable`.
        """
        # Read once, because other threads extend them too.
        known, count = self._of_row, len(table.keys)
        if len(known) < count:
            more = self.numbers(
                table.keys[len(known) : count], table.solo_step_s[len(known) : count].tolist()
            )
            known = self._of_row = np.concatenate([known, np.array(more, dtype=np.int64)])
        return np.where(rows >= 0, known[rows], -1)

    def keys(self) -> dict[int, MemberKey]:
        """What each number stands for, without those at the start."""
        return dict(enumerate(self._keys, self._at_start))

    def key(self, number: int) -> MemberKey:
        """What one number stands for."""
        return self._keys[number - self._at_start]

    def devices(self, numbers: Integers) -> Integers:
        """[S] devices, by number, of sets of members [S, M]; -1 where there are fewer."""
        return np.asarray(self.members.device[numbers.max(1)])

    def are_jobs(self, one: Sequence[int] | Integers, other: Sequence[int] | Integers) -> bool:
        """Whether some members have the same jobs as others, whatever their order, measurements and shares."""
        left, right = (np.sort(self.members.unlimited[np.asarray(each)]) for each in (one, other))
        return np.array_equal(left, right)

    def of_jobs(self, jobs: Iterable[tuple[str, bool, Workload]], count: int) -> Integers:
        """Numbers of those of the first `count` members that run some jobs.

        Args:
            jobs: device, whether in a MIG slice, and job without solo measurements, as `spelled`.
        """
        numbers = {
            (self._devices[device], self._jobs[self._named(job)])
            for device, _, job in jobs
            if device in self._devices and self._named(job) in self._jobs
        }
        pairs = zip(self.members.device[:count].tolist(), self.members.job[:count].tolist(), strict=True)
        return np.flatnonzero([pair in numbers for pair in pairs])

    def _add(self, new: dict[MemberKey, float]) -> None:
        if not new:
            return
        columns = np.array(
            [
                (
                    self._models[self.spelled.network(job).model],
                    self._jobs[job],
                    self._settings[device, sharing],
                    self._devices[device],
                    self._jobs[self._named(replace(job, frozen_prefix=0))],
                    self._jobs[self._named(replace(job, sm_share_ratio=1.0))],
                )
                for w, device, sharing in new
                for job in (self._named(w),)
            ]
        ).T
        features = np.array([self._features(w, d, step) for (w, d, _), step in new.items()])
        unread = np.isnan(features).all(1)
        place = self.scale.place(features, self.parameters)
        place = np.concatenate([place, np.where(unread, _APART * (1 + columns[1]), 0.0)[:, None]], 1)
        predicted = [w.solo.step_time_s is None for w, _, _ in new]
        self.solo_predicted = np.concatenate([self.solo_predicted, predicted])
        measured = [w.solo.utilization_ratio is not None for w, _, _ in new]
        self.utilization_measured = np.concatenate([self.utilization_measured, measured])
        self._add_limits(new)
        start = len(self.members)
        model, job, setting, at, unfrozen, unlimited = columns
        more = Members(place, model, job, setting, at, occupancies(features), unfrozen, unlimited)
        self.members = self.members.joined(more)
        self._keys.extend(new)
        # Last, so that a reader without the lock never sees an incomplete number.
        self._index.update({key: start + k for k, key in enumerate(new)})

    def _add_limits(self, new: dict[MemberKey, float]) -> None:
        """What limits the solo step times of new members."""
        floor, networks, family, load = [], [], [], []
        for workload, device, sharing in new:
            named = self._named(workload)
            # As named, because a graph may have been captured with options that a job need not state.
            job = self.job(named, device)
            captured = workload if job is None else job.workload
            floor.append(-math.inf if job is None or not job.cost.floor_s else math.log(job.cost.floor_s))
            # A job with its default batch size cannot be compared where its graph is unknown.
            sized = captured.batch_size is not None
            card, lacking = _part_of_card(device)
            network = self._networks[sized, without_load(self.spelled.network(named))]
            networks.append(network)
            family.append(self._families[card, leaves_slices_open(device, sharing), network])
            load.append((*load_of(captured), *lacking))
        self.log_step_s = np.concatenate([self.log_step_s, np.log(list(new.values()))])
        self.log_floor_s = np.concatenate([self.log_floor_s, floor])
        self.network = np.concatenate([self.network, networks])
        self.family = np.concatenate([self.family, family])
        self.load = np.concatenate([self.load, load])

    def job(self, workload: Workload, device: str) -> JobOnDevice | None:
        """The job with its graph; None if the job's graph is unknown."""
        try:
            return None if self.featurizer is None else self.featurizer.job(workload, device)
        except CotenantError:
            return None

    def _named(self, workload: Workload) -> Workload:
        plain = workload.without_solo()
        if plain in self._jobs:
            return plain
        short = self.spelled(plain)
        return self._fitted.get(short, short)

    def _features(self, workload: Workload, device: str, step_time_s: float) -> Floats:
        if self.featurizer is None or self.job(workload, device) is None:
            return np.full(MEMBER_WIDTH, np.nan)
        return member_features(workload, device, step_time_s, self.featurizer)


@lru_cache(maxsize=256)
def _part_of_card(device: str) -> tuple[str, tuple[float, float]]:
    """The card of a slice, and numbers that are larger for slices with fewer multiprocessors and with less bandwidth.

    A step takes no less time with larger ones. A card without slices is its own, with equal numbers.
    """
    card, part = split_device(device)
    if part is None and not has_mig(card):
        return device, (0.0, 0.0)
    spec = get_device(device)
    return card, (-float(spec.sm_count), -float(spec.memory_bandwidth_bytes_per_s))
