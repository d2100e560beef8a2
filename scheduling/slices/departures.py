"""When jobs that share a device end: as one leaves, the others speed up; they keep their SM shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from predictor.types import Bools, Floats
from scheduling.slices.options import EXCLUSIVE, SetColumns

# Device, sharing mode, members and their SM shares.
Form = tuple[str, str, tuple[int, ...], tuple[float, ...]]
# Step times [N, M] of the members of each set.
Predict = Callable[[Sequence[Form]], Floats]


def completion_s(columns: SetColumns, iterations: Floats, known: SetColumns, predict: Predict) -> Floats:
    """Seconds until each member of each set ends if all start at once.

    Args:
        columns: N sets of up to M jobs.
        iterations: [J] steps left.
        known: sets with their step times, in which those of remaining members are looked up.
        predict: predicts those that are not there.

    Returns:
        [N, M], 0 beyond the last member; infinite for sets that do not fit.
    """
    there = columns.has_member
    result = np.where(there, np.inf, 0.0)
    left = np.zeros(there.shape)
    left[there] = iterations[[job for members in columns.members for job in members]]
    rows = np.flatnonzero(columns.fits)
    there, left, step_s = there[rows], left[rows], columns.step_time_s[rows]
    steps_of, passed_s = _Steps(columns, known, predict), np.zeros(len(rows))
    while len(rows):
        needed_s = np.where(there, left * step_s, np.inf)
        order = needed_s.argsort(1)
        first, least_s = order[:, 0], needed_s.min(1)
        passed_s = passed_s + least_s
        result[rows, first] = passed_s
        left = left - least_s[:, None] / step_s
        there[np.arange(len(rows)), first] = False
        some = there.any(1)
        rows, there, left, passed_s, order = rows[some], there[some], left[some], passed_s[some], order[some]
        step_s = np.ones(there.shape)
        step_s[there] = steps_of(rows, there, order)
    return result


class _Steps:
    """Step times of what is left of sets, each predicted at most once."""

    def __init__(self, columns: SetColumns, known: SetColumns, predict: Predict) -> None:
        forms = zip(known.device, known.sharing, known.members, known.sm_share_ratio, strict=True)
        # Rows of [K, M] step times.
        self._known = {form: row for row, form in enumerate(forms)}
        self._step_s = known.step_time_s
        self._columns, self._predict = columns, predict

    def __call__(self, rows: NDArray[np.int64], there: Bools, order: NDArray[np.int64]) -> Floats:
        """Step times of all members of all sets that are still there.

        Args:
            rows: [N] of the sets in the columns.
            there: [N, M].
            order: [N, M] positions in the order in which they would end at their last speeds.
        """
        forms = [self._form(row, left) for row, left in zip(rows.tolist(), there.tolist(), strict=True)]
        missing = {form: k for k, form in enumerate(forms) if form not in self._known}
        if missing:
            # With what will probably be left of them later: a call costs more than a few sets.
            asked = (form for k in missing.values() for form in self._forms(rows[k], there[k], order[k]))
            new = [form for form in dict.fromkeys(asked) if form not in self._known]
            self._known.update(zip(new, range(len(self._step_s), len(self._step_s) + len(new)), strict=True))
            step_s = self._predict(new)
            missing_columns = self._step_s.shape[1] - step_s.shape[1]
            self._step_s = np.concatenate([self._step_s, np.pad(step_s, ((0, 0), (0, missing_columns)))])
        step_s = self._step_s[[self._known[form] for form in forms]]
        return step_s[np.arange(step_s.shape[1]) < there.sum(1)[:, None]]

    def _forms(self, row: int, there: Bools, order: NDArray[np.int64]) -> list[Form]:
        """The set, and what is left of it as its members end in this order."""
        left, forms = there.copy(), []
        for place in order[1 : there.sum() + 1]:
            forms.append(self._form(int(row), left.tolist()))
            left[place] = False
        return forms

    def _form(self, row: int, there: list[bool]) -> Form:
        columns = self._columns
        shares = tuple(compress(columns.sm_share_ratio[row], there))
        # A job alone without a share is answered as such, whatever the mode was.
        mode = EXCLUSIVE if shares == (1.0,) else columns.sharing[row]
        return columns.device[row], mode, tuple(compress(columns.members[row], there)), shares
