"""Synthetic sets with known utilisation on GPUs of any type, labelled by processor sharing.

They have no campaign. A job alone keeps the device busy for a share u of its step. Jobs whose shares add up
to at most 1 run as if alone; beyond that, each gets its share of its demand, so every step takes sum(u) times
as long. Packing schedulers have used this rule since Gandiva (Xiao et al., OSDI 2018), and it is what is
known about sharing before anything was measured on a device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from models.features import Floats, is_cpu
from predictor.examples.examples import Examples, Integers
from predictor.fitted.model import CotenantModel
from profiling.devices import get_device, list_devices
from profiling.workload import SoloProfile

# GPUs in addition to those of the examples, and jobs on each.
GPUS, JOBS = 6, 8
MODES = ("time-slice", "mps")


@dataclass(frozen=True, slots=True)
class SharedSets:
    """Synthetic sets of two to four jobs.

    Attributes:
        features: [T, member_width] and demand [T, DEMAND_WIDTH] of the members.
        busy_ratio: [T] share of its step for which a member alone keeps the device busy.
        mode: S sharing modes.
        set_index: [T].
    """

    features: Floats
    demand: Floats
    busy_ratio: Floats
    mode: tuple[str, ...]
    set_index: Integers


def invent_shared_sets(
    model: CotenantModel, examples: Examples, count: int, seed: int = 0
) -> SharedSets | None:
    """Make `count` sets of the examples' jobs on GPUs of the catalogue.

    None if `count` is 0 or there are no jobs.

    GPUs of the examples are included, because the known utilisation changes the answer, not the type.
    """
    rng = np.random.default_rng(seed)
    jobs = sorted(
        {w.without_solo() for w, d in zip(examples.workloads, examples.devices, strict=True)}, key=str
    )
    if not (count and jobs):
        return None
    measured_on = sorted(d for d in set(examples.devices) if not is_cpu(get_device(d)))
    others = [d.name for d in list_devices() if not is_cpu(d) and d.name not in measured_on]
    gpus = [*measured_on, *rng.choice(others, GPUS, replace=False)]
    members, devices = [], []
    for gpu in gpus:
        able = [job for job in jobs if get_device(str(gpu)).supports(job.precision)]
        if not able:
            continue
        for number in rng.choice(len(able), JOBS):
            members.append(able[number])
            devices.append(str(gpu))
    if not members:
        return None
    encoded = model.encode(zip(members, devices, strict=True))
    for row, (job, gpu) in enumerate(zip(members, devices, strict=True)):
        busy = float(rng.uniform(0.02, 1.0))
        measured = SoloProfile(
            step_time_s=encoded[(job, gpu)].step_time_s * float(np.exp(rng.normal(0.0, 0.5))),
            utilization_ratio=busy,
            memory_bandwidth_ratio=busy * float(rng.uniform(0.05, 0.9)) if rng.random() < 0.7 else None,
        )
        members[row] = replace(job, solo=measured)
    variants, where = model.variants(members, devices)
    sizes = rng.choice((2, 2, 2, 3, 4), count)
    chosen = np.concatenate(
        [JOBS * rng.integers(len(members) // JOBS) + rng.integers(0, JOBS, n) for n in sizes]
    )
    set_index = np.repeat(np.arange(count), sizes)
    mode = np.array(MODES)[rng.integers(len(MODES), size=count)]
    busy_ratio = np.array([float(members[row].solo.utilization_ratio or 0.0) for row in chosen])
    rows = where[chosen]
    return SharedSets(variants.features[rows], variants.demand[rows], busy_ratio, tuple(mode), set_index)


def sharing_log_ratio(sets: SharedSets) -> Floats:
    """[T] log of co-located / solo throughput by processor sharing."""
    asked = np.bincount(sets.set_index, sets.busy_ratio)
    return -np.log(np.maximum(asked, 1.0))[sets.set_index]
