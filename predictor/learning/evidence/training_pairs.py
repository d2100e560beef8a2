"""Pairs that a predictor was trained on.

They are used on devices and in sharing modes that something was observed on: elsewhere, having been right on another
device says little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from models.features import Floats
from predictor.gaussian_process.inducing import Choice
from predictor.gaussian_process.kernel import KernelParameters, Members
from predictor.gaussian_process.link import from_scale, slope
from predictor.gaussian_process.rows import Rows, variance
from profiling.devices import get_device, is_known

if TYPE_CHECKING:
    from predictor.examples.examples import Integers
    from predictor.gaussian_process.known_members import NamedMembers
    from predictor.gaussian_process.set_process import SetProcess

# Pairs per device and sharing mode; more are hardly better (docs/benchmarks.md).
MOST_PAIRS = 32
# Noise of a pair that was observed, so that nothing is assumed about it any more.
_SAYS_NOTHING = 1e6


@dataclass(frozen=True, slots=True)
class TrainingPairs:
    """N members beside one partner, for whom the predictor is taken to be right.

    Attributes:
        rows: numbers of the members among those of the process (`SetProcess.seen`).
        setting: [N] of device and sharing mode.
        noise: [N] variance of a measurement, on the scale of `predictor.gaussian_process.link`.
    """

    rows: Rows
    setting: Integers
    noise: Floats

    @classmethod
    def nothing(cls) -> TrainingPairs:
        none = np.zeros(0, np.int64)
        return cls(Rows(none, np.zeros((0, 1), np.int64)), none, np.zeros(0))

    @classmethod
    def of(cls, process: SetProcess, members: Members, parameters: KernelParameters) -> TrainingPairs:
        """Those on GPUs that a process has weights for.

        Args:
            process: of the training sets.
            members: its members on the scale of `parameters`.
            parameters: kernel parameters.
        """
        own, partner = np.nonzero(process.weights.weight)
        # A `cpu` is a core of any processor, so its pairs may be another one's.
        gpu = [is_known(device) and not get_device(device).is_cpu for device, _ in process.seen.settings]
        on_gpu = np.array(gpu, dtype=bool)[members.setting[own]]
        own, partner = own[on_gpu], partner[on_gpu]
        table = process.weights.table(process.seen.members, process.seen.members)
        mean = table[own, partner] + process.centre
        return cls.among(parameters, members, Rows(own, partner[:, None]), from_scale(mean, parameters.knee))

    @classmethod
    def among(
        cls,
        parameters: KernelParameters,
        members: Members,
        rows: Rows,
        log_slowdown: Floats,
        most: int = MOST_PAIRS,
    ) -> TrainingPairs:
        """At most `most` pairs per device and sharing mode, which explain the others best.

        Args:
            parameters: kernel parameters.
            members: the members that the rows number; rows: [R] pairs.
            log_slowdown: [R] measured or predicted.
        """
        settings, chosen = members.setting[rows.own], [np.zeros(0, np.int64)]
        for setting in np.unique(settings).tolist():
            here = np.flatnonzero(settings == setting)
            chosen.append(here[_representative(parameters, members, rows.take(here), most)])
        some = np.concatenate(chosen)
        noise = parameters.noise * slope(log_slowdown[some], parameters.knee) ** 2
        return cls(rows.take(some), settings[some], noise)

    def __len__(self) -> int:
        return len(self.rows)

    def noise_beside(self, members: Members, observed: Rows) -> Floats:
        """[N] `noise`, so large that they say nothing for pairs of jobs that were observed.

        Args:
            members: the members that `rows` number, and others; observed: rows of these.
        """
        if not len(self):
            return self.noise
        pairs = observed.take(np.flatnonzero((observed.partners >= 0).sum(1) == 1))
        partner = pairs.partners.max(1, initial=-1)
        own = _pair(members, self.rows.own, self.rows.partners[:, 0])
        return np.where(np.isin(own, _pair(members, pairs.own, partner)), _SAYS_NOTHING, self.noise)

    def repeated(self, seen: NamedMembers, settings: Sequence[int]) -> tuple[TrainingPairs, NamedMembers]:
        """The pairs of each of some settings, as if they were settings 0, 1, ..., with the members that these number.

        Args:
            seen: the members that `rows` number.
            settings: some of their settings; may repeat.
        """
        members, count = seen.members, len(seen.members)
        parts = [self.within(np.array([setting])) for setting in settings]
        number = np.arange(len(settings))
        several = members.take(np.tile(np.arange(count), len(settings)))
        several = replace(several, setting=np.repeat(number, count), device=np.repeat(number, count))
        rows = [
            Rows(part.rows.own + k * count, part.rows.partners + k * count) for k, part in enumerate(parts)
        ]
        joined = TrainingPairs(
            reduce(Rows.joined, rows, TrainingPairs.nothing().rows),
            np.concatenate([np.zeros(0, np.int64), *(np.full(len(part), k) for k, part in enumerate(parts))]),
            np.concatenate([np.zeros(0), *(part.noise for part in parts)]),
        )
        return joined, replace(seen, members=several, settings=())

    def within(self, settings: Integers) -> TrainingPairs:
        """Those of some devices and sharing modes."""
        here = np.flatnonzero(np.isin(self.setting, settings))
        return TrainingPairs(self.rows.take(here), self.setting[here], self.noise[here])


def _pair(members: Members, own: Integers, partner: Integers) -> Integers:
    """[P] a number for setting, job and partner's job of each pair."""
    jobs = int(members.job.max(initial=0)) + 1
    return (members.setting[own] * jobs + members.job[own]) * jobs + members.job[partner]


def _representative(parameters: KernelParameters, members: Members, rows: Rows, most: int) -> Integers:
    """Numbers of at most `most` of the rows, ascending."""
    rank = np.random.default_rng(0).permutation(len(rows))
    through = np.empty((len(rows), min(most, len(rows))))
    prior = variance(parameters, members, rows)
    return np.sort(Choice(parameters, members, rows, prior, rank, through).made().numbers)
