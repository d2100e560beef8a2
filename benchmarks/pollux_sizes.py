"""Loss of Pollux's allocation over powers of two, against all sizes and a genetic search.

    python -m benchmarks.pollux_sizes [--cases 10]

Random rounds of 10, 20 and 40 jobs on 64 GPUs in nodes of 4: a job's speed on k GPUs is k to a power drawn
from .5 to .95, on at most 4 to 32 GPUs; each currently runs on some power of two, and a change costs a
restart factor of .6 to 1. The allocation is computed exactly over powers of two (`pollux`), exactly over all
sizes (1, 2, 3, ...), which bounds any search, and by the paper's genetic search (section 4.2: 100 allocations
of GPUs by node for 100 generations, with mutation, crossover, tournaments and repair), which starts from the
current allocation. Losses are of the power mean (p = -1) of the speedups, relative to all sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.command_line import benchmark_parser, run_benchmark, several
from benchmarks.record import record
from scheduling.policies.elastic_sizes import best_sizes

POPULATION = GENERATIONS = 100
NODES, NODE_GPUS = 16, 4
GPUS = NODES * NODE_GPUS

Matrices = NDArray[np.int64]  # [allocations, jobs, nodes] GPUs
Rows = list[tuple[list[int], list[float]]]


def drawn(jobs: int, draw: np.random.Generator) -> tuple[Rows, Matrices]:
    """Every size of every job with its cost, 1 / speedup, and the current allocation."""
    held: list[int] = []
    rows: Rows = []
    for number in range(jobs):
        most, power, factor = int(2 ** draw.integers(2, 6)), draw.uniform(0.5, 0.95), draw.uniform(0.6, 1.0)
        room = GPUS - sum(held) - (jobs - number - 1)
        now = int(2 ** draw.integers(0, 1 + int(np.log2(max(1, min(most, room, 2 * GPUS // jobs))))))
        held.append(now)
        sizes = list(range(1, most + 1))
        rows.append((sizes, [1 / (k**power * (1.0 if k == now else factor)) for k in sizes]))
    matrix = np.zeros((jobs, NODES), np.int64)
    owners = np.repeat(np.arange(jobs), held)
    np.add.at(matrix, (owners, np.arange(len(owners)) // NODE_GPUS), 1)
    return rows, matrix


def genetic(rows: Rows, now: Matrices, draw: np.random.Generator) -> float:
    """Minimum sum of costs found by the genetic search; `now` [jobs, nodes] is the current allocation."""
    # A job without GPUs costs twice as much as at its slowest size.
    cost = np.full((len(rows), GPUS + 1), np.inf)
    for j, (sizes, costs) in enumerate(rows):
        cost[j, sizes] = costs
        cost[j, 0] = 2 * max(costs)
        cost[j, sizes[-1] + 1 :] = costs[-1]  # GPUs beyond the largest size are not used

    def repair(population: Matrices) -> Matrices:
        for over in range(NODES):
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
        np.concatenate([now[None], draw.integers(0, NODE_GPUS + 1, (POPULATION - 1, len(rows), NODES))])
    )
    worth = total(population)
    for _ in range(GENERATIONS):
        mutated = population.copy()
        changed = draw.random(mutated.shape) < 1 / NODES
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


def _total(rows: Rows, chosen: list[int]) -> float:
    return sum(costs[sizes.index(size)] for size, (sizes, costs) in zip(chosen, rows, strict=True))


def main() -> None:
    """Run and record."""
    parser = benchmark_parser(__file__, __doc__)
    parser.add_argument("--cases", type=several, default=10, help="random rounds per number of jobs")
    arguments = parser.parse_args()
    draw, figures = np.random.default_rng(0), dict[str, Any]()
    for jobs in (10, 20, 40):
        losses: dict[str, list[float]] = {"powers of two": [], "genetic": []}
        for _ in range(arguments.cases):
            rows, now = drawn(jobs, draw)
            ladder = [_powers(row) for row in rows]
            exact = _total(rows, best_sizes(rows, GPUS))
            losses["powers of two"].append(1 - exact / _total(ladder, best_sizes(ladder, GPUS)))
            losses["genetic"].append(1 - exact / genetic(rows, now, draw))
        figures[f"{jobs} jobs"] = {
            name: {
                "mean_loss_percent": 100 * float(np.mean(values)),
                "standard_error": 100 * float(np.std(values, ddof=1) / len(values) ** 0.5),
                "largest_loss_percent": 100 * max(values),
            }
            for name, values in losses.items()
        }
        print(jobs, "jobs", figures[f"{jobs} jobs"], flush=True)
        record("pollux_sizes", figures | {"cases": arguments.cases})


def _powers(row: tuple[list[int], list[float]]) -> tuple[list[int], list[float]]:
    kept = [(size, cost) for size, cost in zip(*row, strict=True) if size & (size - 1) == 0]
    return [size for size, _ in kept], [cost for _, cost in kept]


if __name__ == "__main__":
    run_benchmark(__file__, main)
