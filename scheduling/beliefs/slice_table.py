"""Measured step times on slices as a predictor: ground truth of the simulator, and the oracle in
comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from predictor.types import PredictionArrays, SetPredictor
from profiling.devices import get_device, has_mig, mig_layout, split_device
from profiling.errors import UnknownNameError
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import Solo, TablePredictor


class SliceTable:
    """Predict from the measured step times of each job alone on the slices of a card.

    A job that was not measured on a slice does not fit there. Sets under MPS that were measured run as measured.
    Everything else follows two assumptions of MISO (Li et al., SoCC 2022) and its emulation: an SM share is worth as
    much as slices of that share (interpolated over 1/7, 2/7, 3/7, 4/7 and 1 of the card), and each neighbour under
    MPS costs a fixed slowdown. Without shares, a process is also at least as slow as with an equal share: on 926
    sets that ParvaGPU measured on slices, this lowers the mean absolute log error from 0.55 to 0.12.

    Args:
        solo: (device, workload) to what was measured. Devices are slices (`a100:mig=3g`), or the card itself
            if measured (otherwise 7g stands in for it). Workloads carry neither share nor solo measurements.
        mps_penalty_per_neighbour: slowdown of each process by each other one in the same place under MPS.
        together: the sets measured under MPS without shares, by `TablePredictor`.
    """

    def __init__(
        self,
        solo: Mapping[tuple[str, Workload], Solo],
        mps_penalty_per_neighbour: float = 0.15,
        together: TablePredictor | None = None,
    ) -> None:
        self.solo = dict(solo)
        self.penalty = mps_penalty_per_neighbour
        self.together = together
        self._curves: dict[tuple[str, Workload], tuple[list[float], list[float]]] = {}
        self._known = {w for _, w in self.solo}

    @classmethod
    def of(cls, table: TablePredictor) -> SliceTable:
        """From measurements on slices. A 1g with twice the memory is as fast as 1g unless measured."""
        solo = dict(table.solo)
        for (device, workload), run in table.solo.items():
            card, part = split_device(device)
            if part == "1g":
                for profile in mig_layout(card).profiles:
                    if profile.compute_slices == 1:
                        solo.setdefault((mig_layout(card).device(profile), workload), run)
        return cls(solo, together=table)

    def workloads(self, device: str) -> tuple[Workload, ...]:
        """Workloads with a step time on `device`, by name."""
        return tuple(sorted((w for w in self._known if self._alone_s(device, w) is not None), key=str))

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`. Time slicing divides the time evenly.

        Raises:
            UnknownNameError: a workload was not measured anywhere.
        """
        shape = (len(sets), max((len(s.workloads) for s in sets), default=1))
        mask, solo, step = np.zeros(shape, bool), np.ones(shape), np.ones(shape)
        memory, fits = np.zeros(shape), np.ones(len(sets), bool)
        for row, colocation_set in enumerate(sets):
            size = len(colocation_set.workloads)
            mask[row, :size] = True
            for column, workload in enumerate(colocation_set.workloads):
                plain = _plain(workload)
                alone = self._alone_s(colocation_set.device, plain)
                if alone is None:
                    fits[row] = False
                    continue
                held = self.solo.get((colocation_set.device, plain))
                memory[row, column] = held.memory_bytes if held else 0.0
                solo[row, column] = alone
                if workload.sm_share_ratio < 1:
                    alone = max(alone, self._shared_s(colocation_set.device, plain, workload.sm_share_ratio))
                others = size - 1
                together = alone * (1 + others * (self.penalty if colocation_set.sharing == "mps" else 1.0))
                if others and colocation_set.sharing == "mps" and workload.sm_share_ratio == 1:
                    together = max(together, self._shared_s(colocation_set.device, plain, 1 / size))
                step[row, column] = together
            measured = self._measured(colocation_set)
            if measured is not None and fits[row]:
                step[row, :size] = solo[row, :size] * measured
            fits[row] &= memory[row].sum() <= get_device(colocation_set.device).memory_bytes
        return PredictionArrays(
            mask, solo, step, step / solo, memory, np.where(mask, 1.0, 0.0), memory.sum(1), fits
        )

    def _measured(self, colocation_set: ColocationSet) -> NDArray[np.float64] | None:
        """Slowdown of each member of a set under MPS without shares, if it was measured."""
        members = colocation_set.workloads
        if self.together is None or len(members) < 2 or colocation_set.sharing != "mps":
            return None
        if any(w.sm_share_ratio < 1 for w in members):
            return None
        plain = tuple(_plain(w) for w in members)
        answer = self.together.measured(colocation_set.device, plain)
        return None if answer is None else 1.0 / np.minimum(answer, 1.0)

    def _alone_s(self, device: str, workload: Workload) -> float | None:
        held = self.solo.get((device, workload))
        if held is None:
            card, part = split_device(device)
            if part is None:  # the largest slice stands for the whole card
                of_size = (self.solo.get((name, workload)) for name in reversed(mig_layout(card).devices))
                held = next((profile for profile in of_size if profile is not None), None)
        if held is None and workload not in self._known:
            raise UnknownNameError(f"{workload} was measured on no slice", got=device)
        return held.step_time_s if held is not None else None

    def _shared_s(self, device: str, workload: Workload, share: float) -> float:
        """Step time with a share of a card, from interpolated speeds of slices; proportional below the
        smallest."""
        card, part = split_device(device)
        shares, speeds = self._curve(card, workload)
        of_card = share if part is None else share * _part_of(card, part)
        if of_card <= shares[0]:
            return shares[0] / (of_card * speeds[0])
        return 1.0 / float(np.interp(of_card, shares, speeds))

    def _curve(self, card: str, workload: Workload) -> tuple[list[float], list[float]]:
        key = card, workload
        if key not in self._curves:
            points = {}
            if has_mig(card):
                layout = mig_layout(card)
                for profile in layout.profiles:
                    held = self.solo.get((layout.device(profile), workload))
                    if held is not None:
                        points[_part_of(card, profile.short)] = 1.0 / held.step_time_s
            if not points:
                points[1.0] = 1.0 / self.solo[card, workload].step_time_s
            self._curves[key] = list(points), list(points.values())
        return self._curves[key]


def _part_of(card: str, part: str) -> float:
    layout = mig_layout(card)
    return layout.profile(part).compute_slices / layout.compute_slices


def _plain(workload: Workload) -> Workload:
    return (
        replace(workload.without_solo(), sm_share_ratio=1.0)
        if workload.sm_share_ratio < 1
        else workload.without_solo()
    )


class KnownFits:
    """A predictor that knows from the truth what fits: a start that fails for memory is not simulated on slices.

    Of several jobs together it must itself predict that they fit, too, because the truth may lack their memory.
    """

    def __init__(self, predictor: SetPredictor, truth: SetPredictor) -> None:
        self.predictor, self.truth = predictor, truth

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`."""
        answer = self.predictor.predict_arrays(sets)
        alone = answer.mask.sum(axis=1) == 1
        return replace(answer, fits=self.truth.predict_arrays(sets).fits & (alone | answer.fits))
