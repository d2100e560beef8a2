"""Typed rows of a user that contradict themselves, or are in other units."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from datasets.tables import Fault
from profiling.devices import get_device
from profiling.devices.mig import check_slices
from profiling.errors import InputError
from profiling.workload import LEAST_MEMORY_BYTES, STEP_TIMES_S, Workload

if TYPE_CHECKING:
    import pandas as pd

# Largest log difference between a ratio or rate and that of its row's step times: a median of ratios is not the
# ratio of medians.
_RATIO_APART = 0.2
# Larger than noise explains: a slowdown, or a percentage. The largest ratio in the public measurements is
# 1.5.
_LARGEST_RATIO = 2.0
# Median of the ratios in a file above which they look like slowdowns. The largest of a public campaign is 0.94.
_LARGEST_MEDIAN_RATIO = 1.1
# No device has more memory; a larger number is in another unit.
_MOST_BYTES = 1e13
_MEASURED_MEMORY = ("memory_bytes", "set_memory_bytes")
_MEMORY = (*_MEASURED_MEMORY, "lower_bound_bytes", "upper_bound_bytes")
_STEPS = ("step_time_s", "solo_step_time_s", "sync_time_s")
# Of one kernel or operator. The public measurements lie between 2.7 microseconds and 12 seconds.
_CALLS = ("duration_s", "latency_s")
_CALL_TIMES_S = (1e-8, 1e2)
# A part, and the whole that it cannot exceed.
_PARTS = (("sync_time_s", "step_time_s"), ("frozen_prefix", "total_layers"), ("nodes", "gpus"))


def before_names(table: str, frame: pd.DataFrame) -> list[Fault]:
    """Faults that the numbers show, whatever device and job they are of."""
    faults = _in_other_units(frame) + _more_than_the_whole(frame)
    if table == "colocation":
        faults += _contradicted_ratios(frame)
    elif table == "memory":
        faults += _contradicted_bounds(frame)
    return faults


def with_names(table: str, frame: pd.DataFrame) -> list[Fault]:
    """Faults of rows whose devices and jobs are known (`datasets.names`)."""
    if table == "colocation":
        faults = _sets_of_one(frame) or _more_than_slices(frame)
    else:
        faults = _contradicted_rates(frame) if table == "solo" else []
    return faults + _more_than_memory(frame)


def like_slowdowns(frame: pd.DataFrame) -> str | None:
    """What to say of typed rows of `colocation` most of which are faster together than alone; None of others."""
    if "throughput_ratio" not in frame:
        return None
    ratios = frame.loc[frame["is_target"] & ~frame["censored"], "throughput_ratio"]
    if not ratios.median() > _LARGEST_MEDIAN_RATIO:
        return None
    return (
        f"{(ratios > 1).sum()} of {len(ratios)} throughput_ratio are above 1, faster together than alone; check that "
        "they are co-located / solo throughput, and not slowdowns"
    )


def unlike_alone(colocation: pd.DataFrame, solo: pd.DataFrame) -> str | None:
    """What to say of jobs whose `solo_step_time_s` is not the step time of their row in `solo`; None if there are none."""
    import numpy as np

    run = ["device", "workload", "campaign"]
    # In a slice, alone is another run than on the whole card.
    members = colocation.loc[colocation["sharing"] != "mig", [*run, "solo_step_time_s"]]
    both = members.merge(solo.loc[solo["gpus"] == 1, [*run, "step_time_s"]], on=run)
    apart = np.abs(np.log(both["solo_step_time_s"] / both["step_time_s"])) > _RATIO_APART
    unlike = both[apart].drop_duplicates(run)
    if not len(unlike):
        return None
    first = unlike.iloc[0]
    return (
        f"table solo, which is used, contradicts solo_step_time_s of sets for {len(unlike)} of "
        f"{len(both.drop_duplicates(run))} jobs; {first['workload']} on {first['device']} takes "
        f"{first['step_time_s']:.3g} and {first['solo_step_time_s']:.3g} s"
    )


def _in_other_units(frame: pd.DataFrame) -> list[Fault]:
    """Memory that cannot be in bytes (in GB or MB), and times that cannot be in seconds (in nanoseconds)."""
    fastest, slowest = STEP_TIMES_S
    ranges = {
        **dict.fromkeys(_MEMORY, (LEAST_MEMORY_BYTES, _MOST_BYTES, "bytes")),
        # Synchronisation may take no time at all.
        **{name: (fastest if name != "sync_time_s" else 0.0, slowest, "seconds per step") for name in _STEPS},
        **dict.fromkeys(_CALLS, (*_CALL_TIMES_S, "seconds per call")),
    }
    return [
        _fault(frame, row, column, f"{unit}, from {least:g} to {most:g}")
        for column, (least, most, unit) in ranges.items()
        if column in frame
        for row in frame.index[(frame[column] < least) | (frame[column] > most)]
    ]


def _more_than_the_whole(frame: pd.DataFrame) -> list[Fault]:
    """Parts that exceed their whole, such as more frozen layers than the model has."""
    return [
        _fault(frame, row, part, f"at most {whole}, {float(frame.loc[row, whole]):g}")
        for part, whole in _PARTS
        if {part, whole} <= set(frame.columns)
        for row in frame.index[(frame[part] > frame[whole]).fillna(False)]
    ]


def _contradicted_ratios(frame: pd.DataFrame) -> list[Fault]:
    """Ratios that contradict their row's step times, or are impossible, e.g. slowdowns instead of throughput
    ratios."""
    import numpy as np

    ratio = frame["throughput_ratio"]
    by_steps = frame["solo_step_time_s"] / frame["step_time_s"]
    # What other processes took differed from repeat to repeat, so that medians may contradict each other.
    steady = frame["is_target"] & ~frame["disturbed"]
    apart = (np.abs(np.log(ratio / by_steps)) > _RATIO_APART) & steady & ~frame["censored"]
    large = (ratio > _LARGEST_RATIO) & steady & ~apart
    possible = f"co-located / solo throughput, 1 at full speed and at most {_LARGEST_RATIO:g}"
    return [
        _fault(frame, row, ratio.name, f"about {by_steps[row]:.3g}, which is solo_step_time_s / step_time_s")
        for row in frame.index[apart]
    ] + [_fault(frame, row, ratio.name, possible) for row in frame.index[large]]


def _contradicted_rates(frame: pd.DataFrame) -> list[Fault]:
    """Samples per second on one GPU that contradict their row's step time, e.g. tokens or batches per second."""
    import numpy as np

    per_step = frame["batch_size"].astype("float64") * [
        Workload.parse(spec).gradient_accumulation for spec in frame["workload"]
    ]
    rate = frame["samples_per_s"]
    by_steps = per_step / frame["step_time_s"]
    apart = (np.abs(np.log(rate / by_steps)) > _RATIO_APART) & (frame["gpus"] == 1) & ~frame["disturbed"]
    return [
        _fault(
            frame, row, rate.name, f"about {by_steps[row]:.4g}, which is the samples per step / step_time_s"
        )
        for row in frame.index[apart]
    ]


def _contradicted_bounds(frame: pd.DataFrame) -> list[Fault]:
    """Bounds of memory that contradict each other or the measured value."""
    least, most, measured = (frame[f"{name}_bytes"] for name in ("lower_bound", "upper_bound", "memory"))
    too_large = (least >= most) | (least >= measured)
    fits = "less than upper_bound_bytes, in which the job ran, and than memory_bytes"
    return [_fault(frame, row, least.name, fits) for row in frame.index[too_large]] + [
        _fault(frame, row, most.name, "at least memory_bytes")
        for row in frame.index[~too_large & (most < measured)]
    ]


def _sets_of_one(frame: pd.DataFrame) -> list[Fault]:
    """Sets of one job that nothing ran beside."""
    size = frame.groupby("set_id")["member"].transform("nunique")
    return [
        Fault(
            int(row) + 1,
            "set_id",
            "a set of two jobs or more, or `processes` above 1 (jobs alone belong in table solo)",
            f"one job in {frame.loc[row, 'set_id']}",
        )
        for row in frame.index[(size == 1) & (frame["processes"].fillna(1) <= 1)]
    ]


def _more_than_slices(frame: pd.DataFrame) -> list[Fault]:
    """Sets under MIG that their device cannot hold, one job in each slice."""
    faults = []
    for _, rows in frame[frame["sharing"] == "mig"].groupby("set_id", sort=False):
        try:
            check_slices(rows["device"].iloc[0], len(rows))
        except InputError as error:
            faults.append(Fault(int(rows.index[0]) + 1, "sharing", str(error.expected), str(error.got)))
    return faults


def _more_than_memory(frame: pd.DataFrame) -> list[Fault]:
    """Measured memory of one GPU beyond what its type has: another unit, or another card."""
    if "device" not in frame:
        return []
    devices = {name: get_device(name) for name in frame["device"].unique()}
    # `cpu` is a core of any machine, whatever its memory.
    room = {name: math.inf if d.is_cpu else d.memory_bytes for name, d in devices.items()}
    most = frame["device"].map(room).astype("float64")
    counts = most > 0 if "gpus" not in frame else frame["gpus"] == 1
    return [
        _fault(frame, row, column, f"at most {most[row]:g} bytes, the memory of {frame.loc[row, 'device']}")
        for column in _MEASURED_MEMORY
        if column in frame
        for row in frame.index[(counts & (frame[column] > most)).fillna(False)]
    ]


def _fault(frame: pd.DataFrame, row: Any, column: Any, expected: str) -> Fault:
    return Fault(int(row) + 1, str(column), expected, repr(float(frame.loc[row, column])))
