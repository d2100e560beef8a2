"""What sets of jobs do on a whole card and on each of its slices: every question to the predictor, in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product

import numpy as np

from predictor.types import Floats, SetPredictor
from profiling.devices import get_device, has_mig, mig_layout
from profiling.errors import InputError
from profiling.workload import ColocationSet, Workload

OBJECTIVES = ("throughput", "jct", "fairness")
EXCLUSIVE = "exclusive"
UNKNOWN_DURATION_S = 3600.0


@dataclass(frozen=True, slots=True)
class SliceJob:
    """A job to be placed.

    Attributes:
        workload: with its `sm_share_ratio` where the share is given; the plan chooses it otherwise.
        iterations: steps left; None where nobody knows, then an hour alone on the whole card.
        weight: how much the job counts.
    """

    workload: Workload
    iterations: float | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.iterations is not None and not 0 < self.iterations < float("inf"):
            raise InputError("iterations is out of range", expected="a number above 0", got=self.iterations)
        if not 0 < self.weight < float("inf"):
            raise InputError("weight is out of range", expected="a number above 0", got=self.weight)


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """What may be planned.

    Attributes:
        objective: `throughput` the weighted sum of speeds relative to a whole card alone; `jct` the weighted sum of
            completion times if all stay as they are placed; `fairness` the least relative speed, then throughput.
        sharing: how several jobs may share a card or a slice.
        mig: whether cards may be partitioned.
        max_together: largest set on a slice; a whole card may take more, see `max_on_card`.
        max_on_card: largest set on a whole card.
        shares: SM shares that are tried for each of two jobs under MPS; larger sets get equal shares. (1.0,): none.
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
        for name in ("max_together", "max_on_card"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} is out of range", expected="an integer from 1", got=getattr(self, name)
                )
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise InputError("shares are out of range", expected="above 0, at most 1", got=self.shares)


@dataclass(frozen=True, slots=True)
class SetOption:
    """One set of jobs on one device (a card or a slice of it).

    Attributes:
        members: numbers of the jobs.
        sharing: `exclusive` for one job, else `time-slice` or `mps`.
        sm_share_ratio: of each member; 1 where nothing limits it.
        step_time_s: of each member.
        memory_bytes: upper bound of all together.
        value: what the set adds to the objective, more is better; for `fairness` its throughput.
        least_speed: least speed of a member relative to the whole card alone.
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

    def renumbered(self, members: tuple[int, ...]) -> SetOption:
        """The same for jobs of other numbers (`dataclasses.replace` would take most of a fleet's time)."""
        return SetOption(
            self.device,
            members,
            self.sharing,
            self.sm_share_ratio,
            self.step_time_s,
            self.memory_bytes,
            self.fits,
            self.value,
            self.least_speed,
        )


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that the predictor says about these jobs on this card and its slices.

    Attributes:
        reference_s: [J] step time alone on the whole card.
        iterations: [J], with those filled in that nobody knows.
        by_set: (device, members) to what they can do there, one for each sharing mode and choice of shares.
    """

    jobs: tuple[SliceJob, ...]
    card: str
    config: SliceConfig
    reference_s: Floats
    iterations: Floats
    by_set: dict[tuple[str, tuple[int, ...]], tuple[SetOption, ...]]

    def joined(self, other: Options) -> Options:
        """With the sets of `other`, which is about the same jobs and takes precedence."""
        return replace(self, by_set=self.by_set | other.by_set)

    def restricted(self, numbers: Sequence[int], devices: Sequence[str]) -> Options:
        """The same for some of the jobs, which are numbered anew; a number may stand there more than once."""
        chosen = {}
        for device, places in sets_of(self.card, devices, range(len(numbers)), self.config):
            options = self.by_set[device, tuple(numbers[k] for k in places)]
            chosen[device, places] = tuple(option.renumbered(places) for option in options)
        index = list(numbers)
        return Options(
            tuple(self.jobs[k] for k in index),
            self.card,
            self.config,
            self.reference_s[index],
            self.iterations[index],
            chosen,
        )


def devices_of(card: str, mig: bool = True) -> list[str]:
    """The whole card, then its slices, smallest first."""
    layout = mig_layout(card) if mig and has_mig(card) else None
    return [card, *(layout.device(profile) for profile in layout.profiles)] if layout else [card]


def ask_unlimited(
    jobs: Sequence[SliceJob], card: str, predictor: SetPredictor, config: SliceConfig
) -> Options:
    """As `ask`, but without SM shares, and of the whole card only the largest sets that fit, which is all that can be
    best there: a quarter of the sets.
    """
    check_jobs(jobs, card)
    card = get_device(card).name
    unlimited = replace(config, shares=(1.0,))
    numbers = range(len(jobs))
    options = answer(
        jobs,
        card,
        list(sets_of(card, devices_of(card, config.mig)[1:], numbers, config)),
        predictor,
        unlimited,
    )
    modes = set(config.sharing)
    for size in range(min(len(jobs), config.max_on_card), 1, -1):
        if not modes:
            break
        whole = [(card, members) for members in combinations(numbers, size)]
        options = options.joined(answer(jobs, card, whole, predictor, unlimited))
        modes -= {o.sharing for key in whole for o in options.by_set[key] if o.fits}
    return replace(options, config=config)


def check_jobs(jobs: Sequence[SliceJob], card: str) -> None:
    """Raises `InputError` where there is no job, or one that the card cannot run."""
    if not jobs:
        raise InputError("no jobs to plan for", expected="at least one --job")
    for job in jobs:
        get_device(card).check_precision(job.workload.precision)


def ask(jobs: Sequence[SliceJob], card: str, predictor: SetPredictor, config: SliceConfig) -> Options:
    """Options of all sets that the configuration allows.

    Raises:
        InputError: there is no job, or a job cannot run on the card (`UnknownNameError`: card or model not known).
    """
    check_jobs(jobs, card)
    card = get_device(card).name
    sets = sets_of(card, devices_of(card, config.mig), range(len(jobs)), config)
    return answer(jobs, card, list(sets), predictor, config)


def sets_of(
    card: str, devices: Sequence[str], jobs: Sequence[int], config: SliceConfig
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(device, members) of every set that the configuration allows of these jobs."""
    for device in devices:
        most = config.max_on_card if device == card else config.max_together
        for size in range(1, min(len(jobs), most if config.sharing else 1) + 1):
            for members in combinations(jobs, size):
                yield device, members


def answer(
    jobs: Sequence[SliceJob],
    card: str,
    sets: Sequence[tuple[str, tuple[int, ...]]],
    predictor: SetPredictor,
    config: SliceConfig,
) -> Options:
    """Options of the sets (device, members) named, and of every job alone on the whole card."""
    alone = [(card, (number,)) for number in range(len(jobs))]
    wanted = list(dict.fromkeys([*alone, *sets]))
    given = [job.workload.sm_share_ratio for job in jobs]
    forms = [
        (device, members, *form)
        for device, members in wanted
        for form in _forms(tuple([given[j] for j in members]), config.sharing, config.shares)
    ]
    # Jobs of one workload have an answer in common; workloads are hashed once, not once a set.
    workloads: dict[Workload, int] = {}
    number_of: dict[tuple[int, float], int] = {}
    for _, members, _, shares in forms:
        for member in zip(members, shares, strict=True):
            if member not in number_of:
                limited = _with_share(jobs[member[0]].workload, member[1])
                number_of[member] = workloads.setdefault(limited, len(workloads))
    asked: dict[tuple[str, str, tuple[int, ...]], int] = {}
    row = np.empty(len(forms), np.int64)
    for at, (device, members, sharing, shares) in enumerate(forms):
        mode = "time-slice" if sharing == EXCLUSIVE else sharing
        key = device, mode, tuple([number_of[member] for member in zip(members, shares, strict=True)])
        row[at] = asked.setdefault(key, len(asked))
    known_workloads = list(workloads)
    arrays = predictor.predict_arrays(
        [
            ColocationSet(device, tuple([known_workloads[w] for w in members]), mode)
            for device, mode, members in asked
        ]
    )
    present, step_time_s = arrays.mask[row], arrays.step_time_s[row]
    number = np.zeros(present.shape, np.int64)
    number[present] = [j for _, members, _, _ in forms for j in members]
    # Every job alone on the whole card stands first.
    reference = step_time_s[: len(jobs), 0]
    known = [job.iterations for job in jobs]
    iterations = np.array(
        [UNKNOWN_DURATION_S / t if n is None else n for n, t in zip(known, reference, strict=True)]
    )
    weight = np.where(present, np.array([job.weight for job in jobs])[number], 0.0)
    speed = np.where(present, reference[number] / step_time_s, np.inf)
    if config.objective == "jct":
        value = -(weight * iterations[number] * step_time_s).sum(1)
    else:
        value = (weight * np.where(present, speed, 0.0)).sum(1)
    columns = zip(
        step_time_s.tolist(),
        arrays.memory_upper_bytes[row].tolist(),
        arrays.fits[row].tolist(),
        value.tolist(),
        speed.min(1).tolist(),
        strict=True,
    )
    by_set: dict[tuple[str, tuple[int, ...]], list[SetOption]] = {}
    for (device, members, sharing, shares), (steps, *rest) in zip(forms, columns, strict=True):
        option = SetOption(device, members, sharing, shares, tuple(steps[: len(members)]), *rest)
        by_set.setdefault((device, members), []).append(option)
    return Options(tuple(jobs), card, config, reference, iterations, {k: tuple(v) for k, v in by_set.items()})


@lru_cache(maxsize=4096)
def _forms(
    own: tuple[float, ...], sharing: tuple[str, ...], shares: tuple[float, ...]
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Sharing modes and shares that a set can have whose jobs bring along the shares `own`; one below 1 stays."""
    size = len(own)
    if size == 1:
        return ((EXCLUSIVE, own),)
    forms: list[tuple[str, tuple[float, ...]]] = []
    if "time-slice" in sharing:
        forms.append(("time-slice", own))
    if "mps" in sharing:
        grid: list[tuple[float, ...]] = [(1.0,) * size]
        if size == 2:
            grid += product(shares, repeat=2)
        elif shares != (1.0,):
            grid += [(share,) * size for share in (0.5, round(1 / size, 2))]
        kept = (
            tuple(given if given < 1 else share for given, share in zip(own, chosen, strict=True))
            for chosen in grid
        )
        forms.extend(("mps", chosen) for chosen in dict.fromkeys(kept))
    return tuple(forms)


def _with_share(workload: Workload, share: float) -> Workload:
    return workload if workload.sm_share_ratio == share else replace(workload, sm_share_ratio=share)


def mask_of(members: Sequence[int]) -> int:
    """Bits of a set of jobs."""
    return sum(1 << j for j in members)
