"""Sets under MIG on a whole card: every job alone on a slice of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from models.features import Floats
from predictor.answering.job_table import JobTable
from predictor.answering.transferred import transferred
from predictor.examples.examples import Integers
from predictor.examples.featurizer import Featurizer
from predictor.fitted.device_memory import HeadCalibration
from profiling.devices import has_mig, mig_layout, split_device
from profiling.devices.mig import MigLayout

_ALONE = "time-slice"
# Speed of a job where it does not fit, so that partitions on which all fit come first.
_NO_ROOM = -1e3
_MOST_KEPT = 50_000


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition with one job per slice.

    Attributes:
        partition: such as `4g+3g`.
        slices: device of each job; slowdown: of each, relative to the whole card, at least 1.
        fits: whether each job fits its slice.
    """

    partition: str
    slices: tuple[str, ...]
    slowdown: tuple[float, ...]
    fits: bool


class OwnSlices:
    """Partitions of cards for sets of jobs: of those on which all jobs fit, the one with the highest total speed.

    It is what `cotenant plan slices` chooses for throughput if slices are not shared. A job on a slice is slower than
    on the whole card by the ratio of its predicted step times; of a measured step, only the busy part grows.

    Args:
        table: rows of the jobs; slices are added.
        calibration: of memory.
        featurizer: costs jobs, to carry over what was measured on the whole card.
    """

    def __init__(self, table: JobTable, calibration: HeadCalibration, featurizer: Featurizer) -> None:
        self._table, self._memory_error = table, calibration.memory_log_error
        self._featurizer = featurizer
        self._cuts: dict[tuple[int, ...], Cut | None] = {}

    def cut(self, rows: Sequence[int]) -> Cut | None:
        """The partition for the jobs in some rows of the table, all on one card; None for one job, on a slice, or
        without a slice for each."""
        key, cuts = tuple(rows), self._cuts  # read once, because other threads replace it
        if key not in cuts:
            if len(cuts) >= _MOST_KEPT:
                cuts = self._cuts = {}
            cuts[key] = self._chosen(key)
        return cuts[key]

    def excess(self, rows: Integers) -> Floats:
        """[S, M] slowdown - 1 from rows [S, M] of the table, -1 where a set has fewer members."""
        result, cuts = np.zeros(rows.shape), self._each(rows)
        for k, cut in enumerate(cuts):
            if cut is not None:
                result[k, rows[k] >= 0] = np.array(cut.slowdown) - 1.0
        uncut = np.array([cut is None for cut in cuts], dtype=bool) & ((rows >= 0).sum(1) > 1)
        if uncut.any():
            result[uncut] = self._table.excess(rows[uncut], "mig")
        return result

    def fits(self, rows: Integers, fits: np.ndarray) -> np.ndarray:
        """[S] whether every job fits its slice; `fits` for jobs that are alone, False without slices for all."""
        alone = (rows >= 0).sum(1) == 1
        return np.array(
            [
                bool(known and single) if cut is None else cut.fits
                for cut, known, single in zip(self._each(rows), fits, alone, strict=True)
            ]
        )

    def _each(self, rows: Integers) -> list[Cut | None]:
        return [self.cut([row for row in one if row >= 0]) for one in rows.tolist()]

    def _chosen(self, rows: tuple[int, ...]) -> Cut | None:
        jobs = [self._table.keys[row] for row in rows]
        card, part = split_device(jobs[0][1])
        if len(jobs) < 2 or part is not None or not has_mig(card):
            return None
        layout = mig_layout(card)
        if len(jobs) > layout.compute_slices:
            return None
        devices = [card, *map(layout.device, layout.profiles)]
        plain = [workload.without_solo() for workload, _, _ in jobs]
        places = np.array(self._table.rows([(w, device, _ALONE) for w in plain for device in devices]))
        places = places.reshape(len(jobs), len(devices))
        step_s = self._table.solo_step_s[places]
        slowdown = np.maximum(step_s[:, 1:] / step_s[:, :1], 1.0)
        for k, (workload, _, _) in enumerate(jobs):
            there = [
                transferred(workload, card, d, workload.sm_share_ratio, self._featurizer).solo.step_time_s
                for d in devices[1:]
            ]
            if None not in there:  # only the device's part of a measured step grows
                on_card_s = workload.solo.step_time_s or step_s[k, 0]
                slowdown[k] = np.maximum(np.array(there, dtype=np.float64) / on_card_s, 1.0)
        room = self._table.device_bytes[places[0, 1:]]
        # On a slice, a process holds less for threads than on the whole card.
        most_bytes = [
            [self._most_bytes(row, place) for place in there]
            for row, there in zip(rows, places[:, 1:].tolist(), strict=True)
        ]
        fits = np.array(most_bytes) <= room
        return _best(layout, slowdown, fits)

    def _most_bytes(self, row: int, place: int) -> float:
        """Upper bound of a job's memory on a slice: as measured on the whole card, or predicted on the slice.

        Args:
            row: the job's row on the whole card; place: on the slice.
        """
        table, (of_graph, of_solo) = self._table, self._memory_error
        row, error = (row, of_solo) if table.memory_measured[row] else (place, of_graph)
        state = float(table.state_bytes[row])
        return state + (float(table.memory_bytes[row]) - state) * math.exp(error)


def _best(layout: MigLayout, slowdown: Floats, fits: np.ndarray) -> Cut:
    """The partition with the highest total speed; of equal ones, that in which the slowest job is fastest.

    Args:
        slowdown: [jobs, profiles]; fits: [jobs, profiles].
    """
    number = {profile: k for k, profile in enumerate(layout.profiles)}
    speed = np.where(fits, 1.0 / slowdown, _NO_ROOM)
    best: tuple[tuple[float, float], Cut] | None = None
    for partition in layout.useful(len(slowdown)):
        columns = np.array([number[profile] for profile in partition.profiles])
        if len(columns) < len(slowdown):
            continue
        jobs, taken = linear_sum_assignment(speed[:, columns], maximize=True)
        chosen = columns[taken]
        value = float(speed[jobs, chosen].sum()), float(speed[jobs, chosen].min())
        if best is None or value > best[0]:
            cut = Cut(
                str(partition),
                tuple(layout.device(layout.profiles[k]) for k in chosen),
                tuple(slowdown[jobs, chosen].tolist()),
                bool(fits[jobs, chosen].all()),
            )
            best = value, cut
    assert best is not None, "a card has as many slices as jobs"
    return best[1]
