"""SJF-BCO: smallest job first, with balanced contention and overhead (algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from profiling.errors import InfeasibleError, InputError
from scheduling.ring.candidates import Candidates
from scheduling.ring.dispatch import in_line
from scheduling.ring.engine import Execution, Gpu, RingRun, RingSchedule
from scheduling.ring.model import RingCluster, RingJob
from scheduling.ring.pick import estimate_s, fa_ffp, lbsgf


@dataclass(frozen=True, slots=True)
class SjfBcoConfig:
    """Configuration of SJF-BCO.

    Attributes:
        packing: FA-FFP packs onto servers in use (the text) or takes the least used GPUs (the listing).
        load_factor: lambda_j of LBSGF.
        tolerance: theta is bisected to this relative width.
    """

    packing: bool = True
    load_factor: float = 1.0
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if not self.load_factor >= 1:
            raise InputError("load_factor", expected="a number from 1", got=self.load_factor)
        if not self.tolerance > 0:
            raise InputError("tolerance", expected="a positive number", got=self.tolerance)


def sjf_bco(
    cluster: RingCluster,
    jobs: Sequence[RingJob],
    execution: Execution = Execution(),
    config: SjfBcoConfig = SjfBcoConfig(),
) -> RingSchedule:
    """The best schedule over theta, the work that a GPU may be given, and kappa.

    Kappa is the gang size up to which FA-FFP places. There are two corrections to the algorithm as printed. A
    kappa that leaves a job without GPUs counts as infeasible (as printed, its makespan stays too small and
    wins), and so does one under which a job makes no progress in a slot or leaves the range of equation 7. Theta is
    bisected on feasibility (as printed, on strict improvement, where it gets stuck). Only gang sizes that occur are
    tried as kappa, since those in between change nothing; 0, which sends every job through LBSGF, is tried as well.

    Raises:
        InfeasibleError: no kappa gives a schedule that ends.
        FormulaError: the literal equation 7 has no bandwidth for a job in any of them.
    """
    in_order = sorted(jobs, key=lambda job: job.gpus)
    if not in_order:
        return RingSchedule(())

    candidates = Candidates()

    def best_of_kappas(theta_s: float) -> RingSchedule | None:
        best: RingSchedule | None = None
        for kappa in (0, *sorted({job.gpus for job in in_order})):

            def pick(job: RingJob, run: RingRun, kappa: int = kappa) -> tuple[Gpu, ...] | None:
                if job.gpus <= kappa:
                    return fa_ffp(job, run, theta_s, packing=config.packing)
                return lbsgf(job, run, theta_s, packing=config.packing, load_factor=config.load_factor)

            schedule = candidates.schedule(partial(in_line, cluster, in_order, pick, execution))
            if schedule is not None and (best is None or schedule.makespan_s < best.makespan_s):
                best = schedule
        return best

    estimates = {job.name: estimate_s(cluster, job) for job in in_order}
    best = best_of_kappas(float("inf"))
    if best is None:
        raise (
            candidates.failures[0]
            if candidates.failures
            else InfeasibleError("no kappa places every job", expected="servers that hold every gang")
        )
    # Below `low` no schedule exists; at `high` one does: the bound that the unbounded run satisfied by
    # itself.
    work = sum(estimates[job.name] * job.gpus for job in in_order) / sum(cluster.servers)
    low = max(work, *estimates.values())
    high = max(low, _largest_load(best, estimates))
    while high - low > config.tolerance * high:
        theta_s = (low + high) / 2
        schedule = best_of_kappas(theta_s)
        if schedule is None:
            low = theta_s
            continue
        high = theta_s
        if schedule.makespan_s < best.makespan_s:
            best = schedule
    candidates.warn()
    return best


def _largest_load(schedule: RingSchedule, estimates: dict[str, float]) -> float:
    load: dict[Gpu, float] = {}
    for assignment in schedule.assignments:
        for gpu in assignment.gpus:
            load[gpu] = load.get(gpu, 0.0) + estimates[assignment.job]
    return max(load.values())
