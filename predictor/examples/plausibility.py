"""Compares measured step times with the cost model's, which tells seconds from milliseconds, and memory with the device's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictor.examples.featurizer import Featurizer
from profiling.devices import DeviceSpec
from profiling.errors import InputError
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

MOST_OFF = 100.0
"""Largest factor between a measured and a predicted step time that needs no explanation.

Unmeasured models are predicted to within a factor of 3. A value this far off is in another unit, belongs to another
job, or waits for its input.
"""
MEMORY_MOST_OFF = 3.0
"""Largest factor between the memory predicted for a set and its device's, if it ran, or ran out of memory.

Further off, something else was measured: of a set that ran out, another process's memory, or the host's, which is what
Kubernetes means by `OOMKilled`.
"""
BOOSTED = 0.65
"""Least ratio of a step time to that at the peak rates of a data sheet.

Boards may run above their clock: the fastest of lamikr's 1,008 steps takes 0.70 of the least time.
"""
# Columns in the order in which they are compared; a table has the first, or none.
_OF_JOBS_ALONE = ("solo_step_time_s", "step_time_s")


def check_plausible(step_time_s: float, predicted_s: float) -> None:
    """Check an observed step time against the model's own prediction.

    Raises:
        InputError: the two are far apart.
    """
    if not predicted_s / MOST_OFF <= step_time_s <= predicted_s * MOST_OFF:
        raise InputError(
            "step_time_s is implausible",
            expected=f"{predicted_s / MOST_OFF:.3g} to {predicted_s * MOST_OFF:.3g} s, "
            f"1/{MOST_OFF:g} to {MOST_OFF:g} times the predicted {predicted_s:.3g} s",
            got=f"{step_time_s:.6g} s",
            hint="check that it is in seconds per step; if so, give the job's solo step_time_s in its SPEC",
        )


def check_memory_plausible(memory_bytes: float, device: DeviceSpec) -> None:
    """Check that a set may have run out of memory.

    Args:
        memory_bytes: predicted for the set, upper end of the interval.
        device: where it ran.

    Raises:
        InputError: it was predicted to take a small part of it.
    """
    if memory_bytes * MEMORY_MOST_OFF < device.memory_bytes:
        raise InputError(
            "out_of_memory is implausible",
            expected=f"a set predicted to take at least {device.memory_bytes / MEMORY_MOST_OFF / 2**30:.3g} GiB on {device.name}",
            got=f"{memory_bytes / 2**30:.3g} GiB",
            hint="check that it was the device's memory, not the host's; if so, give the jobs' memory_bytes in their SPECs",
        )


def implausible_rows(frame: pd.DataFrame) -> list[tuple[int, str]]:
    """Rows whose step time is far from the cost model's for the job alone on its device.

    Args:
        frame: typed rows of any table whose devices and models are known.

    Returns:
        (row from 1, what is implausible), in order.
    """
    column = next((name for name in _OF_JOBS_ALONE if name in frame), None)
    if column is None or not {"device", "workload"} <= set(frame.columns):
        return []
    featurizer = Featurizer()
    found = []
    stated = frame[frame[column].notna() & frame["workload"].notna()]
    for (device, spec), rows in stated.groupby(["device", "workload"], sort=False):
        try:
            predicted_s = featurizer.job(Workload.parse(str(spec)), str(device)).cost.step_time_s
        except InputError:  # e.g. a precision that the device emulates
            continue
        factor = rows[column] / predicted_s
        for row in rows.index[(factor > MOST_OFF) | (factor < 1 / MOST_OFF)]:
            found.append(
                (int(row) + 1, f"{column} is {frame.loc[row, column]:.4g}, predicted {predicted_s:.3g}")
            )
    return sorted(found)
