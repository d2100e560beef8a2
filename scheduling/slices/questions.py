"""Queries the predictor about sets of jobs in few calls, with all sets of one size together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from predictor.answering.transferred import Transfer, transfer_from
from predictor.types import Floats, SetPredictor
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import ColocationSet, SoloProfile, Workload
from scheduling.core.limits import UNKNOWN_LENGTH_S
from scheduling.slices.departures import Form, completion_s
from scheduling.slices.options import (
    EXCLUSIVE,
    Options,
    SetColumns,
    SetKey,
    SliceConfig,
    SliceJob,
    devices_of,
)

# Sharing mode, and SM share of each member.
_Form = tuple[str, tuple[float, ...]]


def check_jobs(jobs: Sequence[SliceJob], card: str) -> None:
    """Raise `InputError` if there are no jobs, or one that the card cannot run."""
    if not jobs:
        raise InputError("no jobs to plan for", expected="at least one --job")
    for job in jobs:
        get_device(card).check_precision(job.workload.precision)


def ask_unlimited(
    jobs: Sequence[SliceJob],
    card: str,
    predictor: SetPredictor,
    config: SliceConfig,
    all_limited: bool = False,
    times: bool = True,
) -> Options:
    """Predict the sets that an optimal plan without SM shares can contain.

    On a slice, these are the sets whose every part fits, because members only add memory; on the whole card,
    the largest sets that fit under each sharing mode.

    Args:
        all_limited: also try the SM shares of all jobs together on the whole card.
        times: with completion times, which only `jct` needs to find the plan.
    """
    check_jobs(jobs, card)
    card = get_device(card).name
    unlimited = replace(config, shares=(1.0,))
    everyone = range(len(jobs))
    slices = devices_of(card, config.mig)[1:]
    alone = _ask(jobs, card, [(device, (j,)) for device in slices for j in everyone], predictor, unlimited)
    parts = [alone]
    largest = min(config.max_together, len(jobs)) if config.sharing else 1
    for size in range(2, largest + 1):
        fitting = _fitting(parts[-1])
        sets = [
            (device, members)
            for device in slices
            for members in combinations(everyone, size)
            if all((device, part) in fitting for part in combinations(members, size - 1))
        ]
        parts.append(_ask(jobs, card, sets, predictor, unlimited, alone))
    modes = set(config.sharing)
    for size in range(min(len(jobs), config.max_on_card), 1, -1):
        if not modes:
            break
        whole = [(card, members) for members in combinations(everyone, size)]
        tried = config if all_limited and size == len(jobs) else unlimited
        parts.append(_ask(jobs, card, whole, predictor, tried, alone))
        columns = parts[-1].columns
        modes -= {mode for mode, fits in zip(columns.sharing, columns.fits.tolist(), strict=True) if fits}
    every = alone.joined(*parts[1:])
    return replace(_until_all_left(every, predictor) if times else every, config=config)


def _fitting(options: Options) -> set[SetKey]:
    """The sets that fit under any sharing mode."""
    fits = options.columns.fits
    return {key for key, (first, end) in options.rows.items() if fits[first:end].any()}


def answer(
    jobs: Sequence[SliceJob],
    card: str,
    sets: Sequence[SetKey],
    predictor: SetPredictor,
    config: SliceConfig,
    known: Options | None = None,
) -> Options:
    """Predict the given sets (device, members).

    Args:
        known: previous options of the same jobs, for their step times alone on the whole card. Without it,
            those are predicted as well and come first in the result.
    """
    return _until_all_left(_ask(jobs, card, sets, predictor, config, known), predictor, known)


def _until_all_left(options: Options, predictor: SetPredictor, known: Options | None = None) -> Options:
    """With completion times, and with their sum as the value if that is the objective."""
    columns = options.columns
    workloads = _Workloads(options.jobs, options.card, transfer_from(predictor, options.card))

    def predict(forms: Sequence[Form]) -> Floats:
        asked: list[ColocationSet] = []
        at = np.zeros(len(forms), np.int64)
        sizes = np.array([len(members) for _, _, members, _ in forms])
        for size in np.unique(sizes):
            rows = np.flatnonzero(sizes == size).tolist()
            device, sharing, members, shares = map(list, zip(*(forms[k] for k in rows), strict=True))
            sets, place = workloads.sets(device, sharing, np.array(members), np.array(shares))
            at[rows] = place + len(asked)
            asked += sets
        return np.asarray(predictor.predict_arrays(asked).step_time_s[at])

    given = columns if known is None else SetColumns.joined([columns, known.columns])
    columns = replace(columns, completion_s=completion_s(columns, options.iterations, given, predict))
    if options.config.objective == "jct":
        columns = replace(columns, value=-columns.completion_s.sum(1))
    return replace(options, columns=columns)


def _ask(
    jobs: Sequence[SliceJob],
    card: str,
    sets: Sequence[SetKey],
    predictor: SetPredictor,
    config: SliceConfig,
    known: Options | None = None,
) -> Options:
    """As `answer`, without completion times."""
    by_size: dict[int, dict[SetKey, None]] = {}
    if known is None:
        by_size[1] = dict.fromkeys((card, (number,)) for number in range(len(jobs)))
    for key in sets:
        by_size.setdefault(len(key[1]), {})[key] = None
    workloads = _Workloads(jobs, card, transfer_from(predictor, card))
    reference_s = known.reference_s if known else np.ones(len(jobs))
    iterations = known.iterations if known else np.ones(len(jobs))
    columns: list[SetColumns] = []
    rows: dict[SetKey, tuple[int, int]] = {}
    start = 0
    for size in sorted(by_size):
        for forms, keys in _grouped(list(by_size[size]), workloads.given, config):
            numbers = np.repeat(np.array([members for _, members in keys], np.int64), len(forms), axis=0)
            device = [device for device, _ in keys for _ in forms]
            sharing = [mode for mode, _ in forms] * len(keys)
            shares = np.tile([s for _, s in forms], (len(keys), 1))
            asked, at = workloads.sets(device, sharing, numbers, shares)
            arrays = predictor.predict_arrays(asked)
            step_time_s = arrays.step_time_s[at]
            if known is None and size == 1:
                reference_s = step_time_s[: len(jobs), 0]
                iterations = np.array(
                    [
                        UNKNOWN_LENGTH_S / t if j.iterations is None else j.iterations
                        for j, t in zip(jobs, reference_s, strict=True)
                    ]
                )
            speed = reference_s[numbers] / step_time_s
            columns.append(
                SetColumns(
                    device,
                    [members for _, members in keys for _ in forms],
                    sharing,
                    [tuple(row) for row in shares.tolist()],
                    step_time_s,
                    arrays.memory_upper_bytes[at],
                    arrays.fits[at],
                    speed.sum(1),
                    speed.min(1),
                    np.zeros(step_time_s.shape),
                )
            )
            rows |= {
                key: (start + k * len(forms), start + (k + 1) * len(forms)) for k, key in enumerate(keys)
            }
            start += len(device)
    return Options(tuple(jobs), card, config, reference_s, iterations, SetColumns.joined(columns), rows)


def _grouped(
    sets: list[SetKey], given: Floats, config: SliceConfig
) -> Iterator[tuple[tuple[_Form, ...], list[SetKey]]]:
    """Group sets of one size by their possible forms; all in one group if no job has a fixed SM share."""
    size = len(sets[0][1])
    if size == 1 or (given == 1.0).all():
        yield _forms((1.0,) * size, config.sharing, config.shares), sets
        return
    groups: dict[tuple[float, ...], list[SetKey]] = {}
    for key in sets:
        groups.setdefault(tuple(given[list(key[1])].tolist()), []).append(key)
    for own, keys in groups.items():
        yield _forms(own, config.sharing, config.shares), keys


class _Workloads:
    """The workloads of the jobs with their SM shares, for queries; equal workloads are queried once.

    Attributes:
        given: [J] fixed SM shares of the jobs; 1 if not fixed, or if MPS enforces none on the card.
    """

    def __init__(self, jobs: Sequence[SliceJob], card: str, transfer: Transfer | None) -> None:
        self._transfer = transfer
        # Limited workload to the one given, whose measurements were made on the whole card.
        self._given: dict[int, int] = {}
        enforced = get_device(card).has_mps_shares
        self.given = np.array([job.workload.sm_share_ratio if enforced else 1.0 for job in jobs])
        self._number: dict[Workload, int] = {}
        self._of_job = np.array([self._number_of(job.workload) for job in jobs], np.int64)
        # Share to [workloads] number of the workload limited to it; -1 if not numbered yet.
        self._limited: dict[float, NDArray[np.int64]] = {}

    def _number_of(self, workload: Workload) -> int:
        return self._number.setdefault(workload, len(self._number))

    def _with_share(self, numbers: NDArray[np.int64], share: float) -> NDArray[np.int64]:
        """Numbers of the jobs' workloads when limited to a share."""
        plain = self._of_job[numbers]
        limited = self._limited.setdefault(share, np.full(int(self._of_job.max()) + 1, -1))
        missing = np.unique(plain[limited[plain] < 0])
        if len(missing):
            known = list(self._number)
            for number in missing.tolist():
                workload = known[number]
                same = workload.sm_share_ratio == share
                limited[number] = number if same else self._number_of(replace(workload, sm_share_ratio=share))
                self._given.setdefault(int(limited[number]), int(number))
        return limited[plain]

    def sets(
        self, device: list[str], sharing: list[str], numbers: NDArray[np.int64], shares: Floats
    ) -> tuple[list[ColocationSet], NDArray[np.int64]]:
        """The distinct queries about sets of one size, and which of them asks about each set.

        Args:
            numbers, shares: [N, size] jobs and their SM shares.
        """
        workload = np.empty(numbers.shape, np.int64)
        for share in np.unique(shares).tolist():
            limited = shares == share
            workload[limited] = self._with_share(numbers[limited], share)
        modes = ["time-slice" if mode == EXCLUSIVE else mode for mode in sharing]
        asked: dict[tuple[str, str, tuple[int, ...]], int] = {}
        keys = zip(device, modes, [tuple(int(w) for w in row) for row in workload], strict=True)
        at = np.array([asked.setdefault(key, len(asked)) for key in keys], np.int64)
        known = list(self._number)

        @cache
        def measured(number: int, device: str) -> Workload:
            workload, given = known[number], known[self._given.get(number, number)]
            if self._transfer is None or given.solo == SoloProfile():
                return workload
            return self._transfer(given, device, workload.sm_share_ratio)

        sets = [
            ColocationSet(d, tuple([measured(w, d) for w in members]), mode) for d, mode, members in asked
        ]
        return sets, at


@lru_cache(maxsize=4096)
def _forms(own: tuple[float, ...], sharing: tuple[str, ...], shares: tuple[float, ...]) -> tuple[_Form, ...]:
    """Sharing modes and SM shares that are possible for a set of jobs with fixed shares `own`.

    A fixed share below 1 is kept under MPS; under time slicing, no shares apply.
    """
    size = len(own)
    if size == 1:
        return ((EXCLUSIVE, (1.0,)),)
    forms: list[_Form] = []
    if "time-slice" in sharing:
        forms.append(("time-slice", (1.0,) * size))
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
