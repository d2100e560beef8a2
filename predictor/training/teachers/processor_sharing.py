"""Synthetic sets on GPUs of any type, labelled by processor sharing.

They have no campaign. A job alone keeps the device busy for a share u of its step. Jobs whose shares add up
to at most 1 run as if alone; beyond that, each gets its share of its demand, so every step takes sum(u) times
as long. Packing schedulers have used this rule since Gandiva (Xiao et al., OSDI 2018), and it is what is
known about sharing before anything was measured on a device.

The network reads u (`stated_sets`) or has to infer it from the graph and, if measured, the solo step time
(`inferred_sets`). The latter are only on GPU types without measured sets, because those of the training
campaigns say how jobs of unknown utilisation share the types they measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.features import Demand, Floats
from predictor.examples.examples import Examples, Integers
from predictor.fitted.model import CotenantModel
from profiling.devices import get_device, list_devices, split_device
from profiling.workload import SoloProfile, Workload

MODES = ("time-slice", "mps")
# Most GPUs without measured sets, and jobs on each GPU of the sets with stated utilisation, and of the others.
UNMEASURED_GPUS = 16
STATED_JOBS, INFERRED_JOBS = 24, 16
# Share of the inferred sets' jobs whose solo step time is known, and of those whose data are on the device.
TIMED, ON_DEVICE = 0.4, 0.4
# Log standard deviations: of the cost model's busy time; of its step time without waiting for data.
BUSY_ERROR, STEP_ERROR = 0.4, 0.15

# A job as the network reads it, and the share of its step for which it keeps the device busy.
Drawn = tuple[Workload, float]


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


def stated_sets(model: CotenantModel, examples: Examples, count: int, seed: int = 0) -> SharedSets | None:
    """Make `count` sets of the examples' jobs, with measured step time and utilisation.

    None if `count` is 0 or there are no jobs.

    GPUs of the examples are included, because the known utilisation changes the answer, not the type.
    """
    rng = np.random.default_rng(seed)
    measured_on, others = _gpus(examples, rng)

    def drawn(job: Workload, gpu: str) -> Drawn:
        busy = float(rng.uniform(0.02, 1.0))
        measured = SoloProfile(
            step_time_s=_demand(model, job, gpu).step_s * float(np.exp(rng.normal(0.0, 0.5))),
            utilization_ratio=busy,
            memory_bandwidth_ratio=busy * float(rng.uniform(0.05, 0.9)) if rng.random() < 0.7 else None,
        )
        return replace(job, solo=measured), busy

    return _sets(model, examples, [*measured_on, *others], STATED_JOBS, drawn, count, rng)


def inferred_sets(model: CotenantModel, examples: Examples, count: int, seed: int = 0) -> SharedSets | None:
    """Make `count` sets of the examples' jobs on GPUs without measured sets, utilisation not measured.

    None if `count` is 0 or there are no jobs.

    Of some jobs the step time is known: the busy time of the graph over it is their utilisation. Of the others
    it is as uncertain as that of the examples' jobs, whose scripts keep a GPU waiting, or of jobs whose data
    are on the device, which do not.
    """
    rng = np.random.default_rng([seed, 1])
    slower = _step_errors(model, examples)

    def drawn(job: Workload, gpu: str) -> Drawn:
        on_device = rng.random() < ON_DEVICE
        if on_device:
            job = replace(job, data_on_device=True)
        demand = _demand(model, job, gpu)
        busy_s = demand.busy_s * float(np.exp(rng.normal(0.0, BUSY_ERROR)))
        if rng.random() < TIMED:
            busy = float(rng.uniform(0.02, 1.0))
            return replace(job, solo=SoloProfile(step_time_s=busy_s / busy)), busy
        error = np.exp(rng.normal(0.0, STEP_ERROR)) if on_device else rng.choice(slower)
        return job, min(1.0, busy_s / (demand.step_s * float(error)))

    _, others = _gpus(examples, rng)
    return _sets(model, examples, others, INFERRED_JOBS, drawn, count, rng)


def _gpus(examples: Examples, rng: np.random.Generator) -> tuple[list[str], list[str]]:
    """GPUs with measured sets, and some of the catalogue's types of which no GPU or slice has any."""
    measured_on = sorted(d for d in set(examples.devices) if not get_device(d).is_cpu)
    types = {split_device(d)[0] for d in measured_on}
    others = [d.name for d in list_devices() if not d.is_cpu and d.name not in types]
    return measured_on, rng.choice(others, min(UNMEASURED_GPUS, len(others)), replace=False).tolist()


def _demand(model: CotenantModel, job: Workload, gpu: str) -> Demand:
    return model.featurizer.job(job, gpu).demand


def _step_errors(model: CotenantModel, examples: Examples) -> Floats:
    """Measured / predicted solo step time of the examples' jobs; 1 if none was measured.

    A type that only such jobs measured counts as unmeasured, as the GPUs of the synthetic sets are.
    """
    measured = {
        (w.without_solo(), d): w.solo.step_time_s
        for w, d in zip(examples.workloads, examples.devices, strict=True)
        if w.solo.step_time_s is not None
    }
    fitted = model.featurizer.cost_model
    unmeasured = {name: fitted.for_unmeasured(get_device(name)) for name in set(examples.devices)}
    errors = []
    for (workload, name), step_s in measured.items():
        job = model.featurizer.job(workload, name)
        errors.append(step_s / unmeasured[name].cost(job.graph, job.device, job.workload).step_time_s)
    return np.array(errors or [1.0])


def _sets(
    model: CotenantModel,
    examples: Examples,
    gpus: Sequence[str],
    jobs_per_gpu: int,
    drawn: Callable[[Workload, str], Drawn],
    count: int,
    rng: np.random.Generator,
) -> SharedSets | None:
    """Draw jobs for every GPU, and sets of them."""
    jobs = sorted(
        {w.without_solo() for w, d in zip(examples.workloads, examples.devices, strict=True)}, key=str
    )
    if not (count and jobs):
        return None
    members, devices, busy_ratio = [], [], []
    for gpu in gpus:
        able = [job for job in jobs if get_device(str(gpu)).supports(job.precision)]
        if not able:
            continue
        for number in rng.choice(len(able), jobs_per_gpu):
            job, busy = drawn(able[number], str(gpu))
            members.append(job)
            devices.append(str(gpu))
            busy_ratio.append(busy)
    if not members:
        return None
    variants, where = model.variants(members, devices)
    sizes = rng.choice((2, 2, 2, 3, 4), count)
    groups = len(members) // jobs_per_gpu
    chosen = np.concatenate(
        [jobs_per_gpu * rng.integers(groups) + rng.integers(0, jobs_per_gpu, n) for n in sizes]
    )
    rows = where[chosen]
    return SharedSets(
        variants.features[rows],
        variants.demand[rows],
        np.array(busy_ratio)[chosen],
        tuple(np.array(MODES)[rng.integers(len(MODES), size=count)]),
        np.repeat(np.arange(count), sizes),
    )


def sharing_log_ratio(sets: SharedSets) -> Floats:
    """[T] log of co-located / solo throughput by processor sharing."""
    asked = np.bincount(sets.set_index, sets.busy_ratio)
    return -np.log(np.maximum(asked, 1.0))[sets.set_index]
