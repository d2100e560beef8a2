"""What Pollux' allocation by dynamic programming over powers of two loses, against every size and against a genetic search.

    python -m benchmarks.pollux_sizes --data sia [--every 60]

`--data` is the `sia` folder with `traces` and `workloads` of a clone of upstream. The workload philly-1 runs under
`pollux` on 64 T4 in nodes of 4; at every so manieth round the same choice is made again: exactly over all sizes
(1, 2, 3, ...), an upper bound for any search, and by the paper's genetic search (section 4.2: allocations of GPUs by
node, 100 of them for 100 generations, mutation, crossover, tournaments, repair; starting from the allocation in force).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import record
from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.policies import pollux
from scheduling.policies.elastic_sizes import best_sizes, ladder
from scheduling.simulator.engine import simulate
from scheduling.simulator.scenario import ScenarioSpec, build_scenario

POPULATION = GENERATIONS = 100
NODE_GPUS = 4

Matrices = NDArray[np.int64]  # [allocations, jobs, nodes] GPUs


def all_sizes(job: JobState) -> list[int]:
    """Every size between the least and the largest of the ladder."""
    rungs = ladder(job)
    return list(range(rungs[0], rungs[-1] + 1))


def genetic(
    rows: list[tuple[list[int], list[float]]], now: Matrices, nodes: int, draw: np.random.Generator
) -> float:
    """Least sum of costs that the genetic search finds; `now` [jobs, nodes] is the allocation in force."""
    most = max(sizes[-1] for sizes, _ in rows)
    # A job without GPUs costs what its slowest size does, twice: better than nothing never is.
    cost = np.full((len(rows), nodes * NODE_GPUS + 1), np.inf)
    for j, (sizes, costs) in enumerate(rows):
        cost[j, sizes] = costs
        cost[j, 0] = 2 * max(costs)
        cost[j, sizes[-1] + 1 :] = costs[-1]  # what is more than the largest size is not used
    assert most <= nodes * NODE_GPUS

    def repair(population: Matrices) -> Matrices:
        for over in range(nodes):
            while True:
                full = population[:, :, over].sum(axis=1) > NODE_GPUS
                if not full.any():
                    break
                held = population[full][:, :, over] > 0
                pick = np.where(held, draw.random(held.shape), -1.0).argmax(axis=1)
                population[np.flatnonzero(full), pick, over] -= 1
        return population

    def total(population: Matrices) -> NDArray[np.float64]:
        gpus = population.sum(axis=2)
        return np.asarray(cost[np.arange(len(rows))[None, :], gpus].sum(axis=1))

    population = repair(
        np.concatenate([now[None], draw.integers(0, NODE_GPUS + 1, (POPULATION - 1, len(rows), nodes))])
    )
    worth = total(population)
    for _ in range(GENERATIONS):
        mutated = population.copy()
        changed = draw.random(mutated.shape) < 1 / nodes
        mutated[changed] = draw.integers(0, NODE_GPUS + 1, int(changed.sum()))
        first, second = (
            np.array(
                [min(draw.integers(0, POPULATION, 2), key=lambda i: worth[i]) for _ in range(POPULATION)]
            )
            for _ in range(2)
        )
        mixed = np.where(draw.random((POPULATION, len(rows), 1)) < 0.5, population[first], population[second])
        everyone = np.concatenate([population, repair(mutated), repair(mixed)])
        worth = total(everyone)
        best = np.argsort(worth, kind="stable")[:POPULATION]
        population, worth = everyone[best], worth[best]
    return float(worth[0])


class Watched:
    """Pollux, and at every so manieth round what other searches would have chosen."""

    def __init__(self, every: int) -> None:
        self.every, self.round, self.rows = every, 0, list[dict[str, float]]()
        self.draw = np.random.default_rng(0)

    def decide(self, snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
        self.round += 1
        if self.round % self.every == 0:
            self._compare(snapshot, belief)
        return pollux.decide(snapshot, belief)

    def _compare(self, snapshot: SchedulingSnapshot, belief: SetCache) -> None:
        numbers, rows = pollux.choices(snapshot, belief)
        finer_numbers, finer = pollux.choices(snapshot, belief, all_sizes)
        if not rows or numbers != finer_numbers:
            return
        gpus = len(snapshot)
        jobs = {job.number: job for job in snapshot.active()}
        now = np.zeros((len(rows), gpus // NODE_GPUS), np.int64)
        for j, number in enumerate(numbers):
            for gpu in jobs[number].gpus:
                now[j, gpu // NODE_GPUS] += 1
        self.rows.append(
            {
                "jobs": len(rows),
                "powers of two": _total(rows, best_sizes(rows, gpus)),
                "every size": _total(finer, best_sizes(finer, gpus)),
                "genetic": genetic(finer, now, gpus // NODE_GPUS, self.draw),
            }
        )


def _total(rows: list[tuple[list[int], list[float]]], chosen: list[int]) -> float:
    return sum(costs[sizes.index(size)] for size, (sizes, costs) in zip(chosen, rows, strict=True))


def main() -> None:
    """Run and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with traces and workloads")
    parser.add_argument("--every", type=int, default=60, help="compare at every so manieth round")
    arguments = parser.parse_args()
    spec = ScenarioSpec(f"sia:{arguments.data / 'workloads' / 'philly/workload-1'}.csv", "sia-64-homogeneous")
    scenario, watched = build_scenario(spec), Watched(arguments.every)
    policy = Policy("pollux", watched.decide, round_s=60.0, preemptive=True)
    simulate(
        scenario.jobs,
        scenario.cluster,
        policy,
        scenario.truth,
        SetCache.of(scenario.belief),
        scenario.config,
        agent=scenario.agent,
    )
    figures: dict[str, Any] = {"rounds": len(watched.rows), "every": arguments.every}
    jobs = np.array([row["jobs"] for row in watched.rows])
    figures["mean_jobs"] = float(jobs.mean())
    exact = np.array([row["every size"] for row in watched.rows])
    for name in ("powers of two", "genetic"):
        # Mean speedup as the power mean with p = -1: the ratio of it is the inverse ratio of the sums.
        loss = 100 * (1 - exact / np.array([row[name] for row in watched.rows]))
        figures[name] = {
            "mean_loss_percent": float(loss.mean()),
            "standard_error": float(loss.std(ddof=1) / len(loss) ** 0.5),
            "largest_loss_percent": float(loss.max()),
        }
    print(figures)
    record("pollux_sizes", figures)


if __name__ == "__main__":
    main()
