"""Predicted options of sets of jobs on a whole card and on each of its slices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from predictor.types import Bools, Floats
from profiling.checked_fields import check_range
from profiling.devices import get_device, has_mig, mig_layout
from profiling.errors import InputError
from profiling.workload import Workload

OBJECTIVES = ("throughput", "jct", "fairness")
EXCLUSIVE = "exclusive"
# (device, numbers of the jobs).
SetKey = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class SliceJob:
    """A job to be placed.

    Attributes:
        workload: with `sm_share_ratio` if the share is given; otherwise the plan chooses it.
        iterations: steps left; None for an hour's worth alone on the whole card.
    """

    workload: Workload
    iterations: float | None = None

    def __post_init__(self) -> None:
        if self.iterations is not None and not 0 < self.iterations < float("inf"):
            raise InputError("iterations is out of range", expected="a number above 0", got=self.iterations)


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """Configuration of a plan.

    Attributes:
        objective: `throughput`, the sum of speeds relative to running alone on a whole card; `jct`, the sum of
            completion times as jobs leave one by one; `fairness`, the least relative speed, then throughput.
        sharing: how several jobs may share a card or a slice.
        mig: whether cards may be partitioned.
        max_together: largest set on a slice; a whole card may take more, see `max_on_card`.
        max_on_card: largest set on a whole card.
        shares: SM shares to try for each of two jobs under MPS; larger sets get equal shares. (1.0,): none.
    """

    objective: str = "throughput"
    sharing: tuple[str, ...] = ("time-slice", "mps")
    mig: bool = True
    max_together: int = 4
    max_on_card: int = 8
    shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(
                "unknown objective", expected="one of " + ", ".join(OBJECTIVES), got=self.objective
            )
        if not set(self.sharing) <= {"time-slice", "mps"}:
            raise InputError(
                "unknown sharing mode", expected="time-slice and mps, or none", got=", ".join(self.sharing)
            )
        check_range(self, lambda value: value >= 1, "an integer from 1", "max_together", "max_on_card")
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise InputError("shares are out of range", expected="above 0, at most 1", got=self.shares)

    def on(self, card: str) -> SliceConfig:
        """The same without what the card lacks: MPS, or its SM shares.

        Raises:
            InputError: it lacks the only sharing mode.
        """
        device = get_device(card)
        if device.has_mps_shares or "mps" not in self.sharing:
            return self
        if device.has_mps:
            return replace(self, shares=(1.0,))
        left = tuple(mode for mode in self.sharing if mode != "mps")
        if not left:
            raise InputError(
                f"{card} has no MPS",
                expected="sharing time-slice or none, or an NVIDIA GPU",
                got="sharing mps",
            )
        return replace(self, sharing=left)


@dataclass(frozen=True, slots=True)
class SetOption:
    """One set of jobs on one device (a card or a slice of it).

    Attributes:
        members: numbers of the jobs.
        sharing: `exclusive` for one job, else `time-slice` or `mps`.
        sm_share_ratio: of each member; 1 if unlimited.
        step_time_s: of each member.
        memory_bytes: upper bound of the total.
        value: contribution to the objective, more is better; for `fairness` its throughput.
        least_speed: least speed of a member relative to the whole card alone.
        completion_s: seconds until each member ends if all start at once; as others end, the rest speed up.
    """

    device: str
    members: tuple[int, ...]
    sharing: str
    sm_share_ratio: tuple[float, ...]
    step_time_s: tuple[float, ...]
    memory_bytes: float
    fits: bool
    value: float
    least_speed: float
    completion_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SetColumns:
    """The fields of N `SetOption`s as columns, because thousands are compared but few are looked up.

    Attributes:
        device, members, sharing, sm_share_ratio: [N]; see `SetOption`.
        step_time_s: [N, M], padded with 1 beyond the last member.
        memory_bytes, fits, value, least_speed: [N].
        completion_s: [N, M], padded with 0.
    """

    device: list[str]
    members: list[tuple[int, ...]]
    sharing: list[str]
    sm_share_ratio: list[tuple[float, ...]]
    step_time_s: Floats
    memory_bytes: Floats
    fits: Bools
    value: Floats
    least_speed: Floats
    completion_s: Floats

    @classmethod
    def joined(cls, parts: Sequence[SetColumns]) -> SetColumns:
        """Concatenate the rows of all parts."""
        width = max((part.step_time_s.shape[1] for part in parts), default=1)

        def padded(columns: list[Floats], value: float) -> Floats:
            padding = [((0, 0), (0, width - column.shape[1])) for column in columns]
            wide = [np.pad(c, p, constant_values=value) for c, p in zip(columns, padding, strict=True)]
            return np.concatenate([np.zeros((0, width)), *wide])

        return cls(
            [x for p in parts for x in p.device],
            [x for p in parts for x in p.members],
            [x for p in parts for x in p.sharing],
            [x for p in parts for x in p.sm_share_ratio],
            padded([p.step_time_s for p in parts], 1.0),
            np.concatenate([np.zeros(0), *(p.memory_bytes for p in parts)]),
            np.concatenate([np.zeros(0, bool), *(p.fits for p in parts)]),
            np.concatenate([np.zeros(0), *(p.value for p in parts)]),
            np.concatenate([np.zeros(0), *(p.least_speed for p in parts)]),
            padded([p.completion_s for p in parts], 0.0),
        )

    @property
    def has_member(self) -> Bools:
        """[N, M] whether a set has that many members."""
        sizes = np.fromiter(map(len, self.members), np.int64, len(self.members))
        return np.arange(self.step_time_s.shape[1]) < sizes[:, None]

    def taken(self, rows: Sequence[int], members: list[tuple[int, ...]]) -> SetColumns:
        """Select rows, with new job numbers."""
        at = np.asarray(rows, np.int64)
        return SetColumns(
            [self.device[row] for row in rows],
            members,
            [self.sharing[row] for row in rows],
            [self.sm_share_ratio[row] for row in rows],
            self.step_time_s[at],
            self.memory_bytes[at],
            self.fits[at],
            self.value[at],
            self.least_speed[at],
            self.completion_s[at],
        )

    def option(self, row: int) -> SetOption:
        members = self.members[row]
        return SetOption(
            self.device[row],
            members,
            self.sharing[row],
            self.sm_share_ratio[row],
            tuple(self.step_time_s[row, : len(members)].tolist()),
            float(self.memory_bytes[row]),
            bool(self.fits[row]),
            float(self.value[row]),
            float(self.least_speed[row]),
            tuple(self.completion_s[row, : len(members)].tolist()),
        )


@dataclass(frozen=True, slots=True)
class Options:
    """All predictions for these jobs on this card and its slices.

    Attributes:
        reference_s: [J] step time alone on the whole card.
        iterations: [J], with unknown ones filled in.
        columns: one row for each set, sharing mode and choice of shares.
        rows: (device, members) to the first row of the set and the row after its last.
    """

    jobs: tuple[SliceJob, ...]
    card: str
    config: SliceConfig
    reference_s: Floats
    iterations: Floats
    columns: SetColumns
    rows: dict[SetKey, tuple[int, int]]

    def choices(self, device: str, members: tuple[int, ...]) -> tuple[SetOption, ...]:
        """Return the options of a set on a device."""
        return tuple(self.columns.option(row) for row in range(*self.rows[device, members]))

    def joined(self, *others: Options) -> Options:
        """Add the sets of `others`, which must be about the same jobs and have no set in common."""
        rows, start = dict(self.rows), len(self.columns.device)
        for other in others:
            rows |= {key: (first + start, end + start) for key, (first, end) in other.rows.items()}
            start += len(other.columns.device)
        columns = SetColumns.joined([self.columns, *(other.columns for other in others)])
        return replace(self, columns=columns, rows=rows)

    def without(self, keys: Collection[SetKey]) -> Options:
        """Drop these sets."""
        kept = [key for key in self.rows if key not in keys]
        return self._taken(kept, kept)

    def restricted(self, numbers: Sequence[int], devices: Sequence[str]) -> Options:
        """Restrict to some of the jobs, renumbered from 0; a number may appear in `numbers` more than
        once."""
        keys = list(sets_of(self.card, devices, range(len(numbers)), self.config))
        index = list(numbers)
        return replace(
            self._taken(keys, [(device, tuple([index[k] for k in places])) for device, places in keys]),
            jobs=tuple(self.jobs[k] for k in index),
            reference_s=self.reference_s[index],
            iterations=self.iterations[index],
        )

    def _taken(self, keys: Sequence[SetKey], sources: Sequence[SetKey]) -> Options:
        """Copy the sets `sources` under the keys `keys`."""
        at: list[int] = []
        members: list[tuple[int, ...]] = []
        rows = {}
        for key, source in zip(keys, sources, strict=True):
            first, end = self.rows[source]
            rows[key] = len(at), len(at) + end - first
            at.extend(range(first, end))
            members.extend([key[1]] * (end - first))
        return replace(self, columns=self.columns.taken(at, members), rows=rows)


def devices_of(card: str, mig: bool = True) -> list[str]:
    """The whole card, then its slices, smallest first."""
    return [card, *(mig_layout(card).devices if mig and has_mig(card) else ())]


def sets_of(
    card: str, devices: Sequence[str], jobs: Sequence[int], config: SliceConfig
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (device, members) of every set of these jobs that the configuration allows."""
    for device in devices:
        most = config.max_on_card if device == card else config.max_together
        for size in range(1, min(len(jobs), most if config.sharing else 1) + 1):
            for members in combinations(jobs, size):
                yield device, members


@lru_cache(maxsize=1 << 14)
def mask_of(members: tuple[int, ...]) -> int:
    """Return the bit mask of a set of jobs."""
    return sum(1 << j for j in members)
