"""The contention model: equations 6 to 9 of the paper, with k at least 1 except in the literal form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import InputError
from scheduling.ring.fabric import SERVER_UPLINKS, Fabric, Link, Placement

MAX_GPUS = 100_000
"""Of one cluster; schedulers keep a list of them."""


class FormulaError(InputError):
    """A job's contention is so low that the literal equation 7 gives it no bandwidth."""


@dataclass(frozen=True, slots=True)
class RingCluster:
    """Servers and their communication costs. Sizes and bandwidths share one unit (such as MB and MB/s).

    Args:
        inter_bandwidth: b_e, between servers.
        intra_bandwidth: b_i, inside a server.
        reduce_speed: C, gradient reduced per second.
        alpha: loss on a shared link beyond fair sharing, f(alpha, k) = k + alpha (k - 1).
        xi1: share of the jobs on a link that contend at a time, in (0, 1].
        xi2: overhead per server spanned, in seconds.
        servers: O_s, GPUs of each server.
    """

    inter_bandwidth: float
    intra_bandwidth: float
    reduce_speed: float
    alpha: float
    xi1: float
    xi2: float
    servers: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("inter_bandwidth", "intra_bandwidth", "reduce_speed"):
            _check(name, getattr(self, name), "a positive number", lambda x: x > 0)
        for name in ("alpha", "xi2"):
            _check(name, getattr(self, name), "a number from 0", lambda x: x >= 0)
        _check("xi1", self.xi1, "a number above 0 and at most 1", lambda x: 0 < x <= 1)
        if not self.servers or any(count < 1 for count in self.servers):
            raise InputError("servers", expected="at least one, each with 1 GPU or more", got=self.servers)
        if sum(self.servers) > MAX_GPUS:
            raise InputError("servers", expected=f"at most {MAX_GPUS} GPUs in total", got=sum(self.servers))


@dataclass(frozen=True, slots=True)
class RingJob:
    """A gang of `gpus` (G_j) that runs `iterations` (F_j) steps, each ending in a ring all-reduce.

    Args:
        gradient_size: m_j, in the cluster's unit of size.
        forward_s_per_sample: forward time of one sample.
        batch_size: M_j, samples per step and worker.
        backward_s: backward time of a step.
    """

    name: str
    gpus: int
    gradient_size: float
    forward_s_per_sample: float
    batch_size: float
    backward_s: float
    iterations: float

    def __post_init__(self) -> None:
        where = f"job {self.name!r}: "
        _check(f"{where}gpus", self.gpus, "an integer from 1", lambda x: x >= 1 and x == int(x))
        for name in ("gradient_size", "forward_s_per_sample", "backward_s"):
            _check(where + name, getattr(self, name), "a number from 0", lambda x: x >= 0)
        for name in ("batch_size", "iterations"):
            _check(where + name, getattr(self, name), "a positive number", lambda x: x > 0)

    @property
    def compute_s(self) -> float:
        """Forward and backward time of a step."""
        return self.forward_s_per_sample * self.batch_size + self.backward_s

    @property
    def reduced_size(self) -> float:
        """m (w - 1) / w: amount that one worker reduces in a step; it sends twice that."""
        return self.gradient_size * (self.gpus - 1) / self.gpus


@dataclass(frozen=True, slots=True)
class RingTiming:
    """Timing of a job.

    Attributes:
        contention: p_j of equation 6 (0 on one server).
        bandwidth: B_j.
        iteration_time_s: tau_j of equation 8.
    """

    contention: float
    bandwidth: float
    iteration_time_s: float


def sharing_cost(alpha: float, k: float) -> float:
    """f(alpha, k) = k + alpha (k - 1): factor by which k contenders divide a link's bandwidth."""
    return k + alpha * (k - 1)


def ring_timing(
    cluster: RingCluster,
    job: RingJob,
    placement: Placement,
    contention: float,
    *,
    rings: int = 1,
    clamp: bool = True,
) -> RingTiming:
    """Bandwidth and iteration time of one job at a given contention (equations 7 and 8).

    Args:
        cluster: the cluster.
        job: the job.
        placement: server index → GPUs.
        contention: p_j; read only if the job spans servers.
        rings: number of parallel rings (`Fabric.rings`).
        clamp: k = max(1, xi1 p), so that no job gets more than the link's bandwidth; False is equation 7 as
            printed.

    Raises:
        FormulaError: f(alpha, k) of the form as printed is not positive.
        InputError: the iteration time is not a positive, finite number.
    """
    if len(placement) > 1:
        k = cluster.xi1 * contention
        k = max(1.0, k) if clamp else k
        cost = sharing_cost(cluster.alpha, k)
        if not cost > 0:
            raise FormulaError(
                f"job {job.name!r}: f(alpha, k) is not positive",
                expected="k + alpha (k - 1) above 0",
                got=f"{cost:g} at k = {k:g}",
                hint="use the clamped form, k at least 1",
            )
        bandwidth = cluster.inter_bandwidth * rings / cost
    else:
        contention, bandwidth = 0, cluster.intra_bandwidth
    iteration_time_s = (
        2 * job.reduced_size / bandwidth
        + job.reduced_size / cluster.reduce_speed
        + cluster.xi2 * len(placement)
        + job.compute_s
    )
    if not 0 < iteration_time_s < math.inf:
        raise InputError(
            f"job {job.name!r}: iteration time is out of range",
            expected="times, sizes and bandwidths that give a positive, finite time",
            got=f"{iteration_time_s:g} s",
        )
    return RingTiming(contention, bandwidth, iteration_time_s)


def execution_s(job: RingJob, iterations: float, iteration_time_s: float) -> float:
    """Seconds of `iterations` steps of `job`.

    Raises:
        InputError: not a finite number.
    """
    seconds = iterations * iteration_time_s
    if not seconds < math.inf:
        raise InputError(
            f"job {job.name!r}: execution time is out of range",
            expected="iterations that take a finite time",
            got=f"{iterations:g} of {iteration_time_s:g} s",
        )
    return seconds


def ring_timings(
    cluster: RingCluster,
    jobs: Mapping[str, RingJob],
    placements: Mapping[str, Placement],
    *,
    fabric: Fabric = SERVER_UPLINKS,
    clamp: bool = True,
) -> dict[str, RingTiming]:
    """Timing of every placed job, given all that run with it (equations 6 to 8).

    On the default fabric, contention is the paper's: the largest number of split jobs, itself included, on
    any server that the job uses. On another fabric it is the largest ratio of flows to capacity over the
    links that the job crosses, which is the same on server uplinks with one card.

    Args:
        cluster: the cluster.
        jobs: by name; those without a placement do not run.
        placements: by job name, server index → GPUs, positive.
        fabric: the links.
        clamp: see `ring_timing`.

    Raises:
        InputError: an iteration would take no time, or no finite time.
    """
    flows: dict[Link, float] = {}
    crossed = {name: fabric.links(placement) for name, placement in placements.items()}
    rings = {name: fabric.rings(placement) for name, placement in placements.items()}
    for name, links in crossed.items():
        for link in links:
            flows[link] = flows.get(link, 0) + rings[name]
    timings = {}
    for name, placement in placements.items():
        load = max((flows[link] / fabric.flows_at_full_rate(link) for link in crossed[name]), default=0)
        timings[name] = ring_timing(cluster, jobs[name], placement, load, rings=rings[name], clamp=clamp)
    return timings


def check_placement(
    cluster: RingCluster, jobs: Mapping[str, RingJob], placements: Mapping[str, Placement]
) -> None:
    """Check gangs and capacities.

    Raises:
        InputError: unknown job or server, an incomplete gang, or a server with too few GPUs.
    """
    used = [0] * len(cluster.servers)
    for name, placement in placements.items():
        if name not in jobs:
            raise InputError(
                f"placement names job {name!r}",
                expected="one of " + ", ".join(map(repr, jobs)),
                got=repr(name),
            )
        for server, gpus in placement.items():
            if not 0 <= server < len(used):
                raise InputError(
                    f"placement of job {name!r} names server {server}",
                    expected=f"an index from 0 to {len(used) - 1}",
                    got=server,
                )
            used[server] += gpus
        if sum(placement.values()) != jobs[name].gpus:
            raise InputError(
                f"job {name!r} is not placed completely",
                expected=f"{jobs[name].gpus} GPUs (its gang)",
                got=sum(placement.values()),
            )
    for server, count in enumerate(used):
        if count > cluster.servers[server]:
            raise InputError(
                f"server {server} is over its capacity",
                expected=f"at most {cluster.servers[server]} GPUs",
                got=count,
            )


def iterations_per_slot(timing: RingTiming, slot_s: float) -> int:
    """Equation 9: whole iterations in a slot of `slot_s` seconds."""
    # A step of exactly a tenth of a slot fits ten times, despite binary rounding.
    return math.floor(slot_s / timing.iteration_time_s * (1 + 1e-12))


def _check(name: str, value: object, expected: str, holds: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not holds(value):  # type: ignore[arg-type, operator]
        raise InputError(name, expected=expected, got=repr(value))
