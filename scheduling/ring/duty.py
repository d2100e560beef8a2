"""Beyond equation 6: a neighbour contends only while it exchanges gradients, not while it computes."""

from __future__ import annotations

from collections.abc import Mapping

from scheduling.ring.fabric import SERVER_UPLINKS, Fabric, Link, Placement
from scheduling.ring.model import RingCluster, RingJob, RingTiming, ring_timing

_ROUNDS = 60


def duty_cycle_timings(
    cluster: RingCluster,
    jobs: Mapping[str, RingJob],
    placements: Mapping[str, Placement],
    *,
    fabric: Fabric = SERVER_UPLINKS,
) -> dict[str, RingTiming]:
    """Timing of every placed job if a rival counts by its duty cycle, the share of its time spent exchanging.

    k_j = 1 + the sum of the rivals' duty cycles on that link of j where it is largest, and k is at least 1.
    Duty cycles and timings depend on each other, so both are iterated (damped) from full duty, where they are
    the paper's. Phases are assumed independent: jobs that fall into step, or out of it, contend more or less
    than this.

    Raises:
        InputError: an iteration would take no time, or no finite time.
    """
    crossed = {name: fabric.links(placement) for name, placement in placements.items()}
    rings = {name: fabric.rings(placement) for name, placement in placements.items()}
    duty = dict.fromkeys(placements, 1.0)
    timings: dict[str, RingTiming] = {}
    for _ in range(_ROUNDS):
        flows: dict[Link, float] = {}
        for name, links in crossed.items():
            for link in links:
                flows[link] = flows.get(link, 0.0) + rings[name] * duty[name]
        for name, placement in placements.items():
            own = rings[name] * (1 - duty[name])
            load = max(
                ((flows[link] + own) / fabric.flows_at_full_rate(link) for link in crossed[name]), default=0
            )
            timings[name] = ring_timing(cluster, jobs[name], placement, load, rings=rings[name])
            exchange_s = 2 * jobs[name].reduced_size / timings[name].bandwidth
            duty[name] += (exchange_s / timings[name].iteration_time_s - duty[name]) / 2
    return timings
