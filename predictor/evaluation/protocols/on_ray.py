"""Runs the folds of a protocol on the nodes of a Ray cluster; the caller stores the results."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from predictor.evaluation.protocols.protocol import Trial
from predictor.evaluation.protocols.registry import contenders
from predictor.evaluation.protocols.runner import Cell, Plan, run_cell
from profiling.errors import UnavailableError
from profiling.ray_workers import PATIENCE_S, RayWorkers

# Contender, fold and seed: where it runs, a contender is looked up by name; folds are numbered.
_Task = tuple[str, int, int]


def spread_on_ray(
    plan: Plan, address: str, patience_s: float = PATIENCE_S
) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Results of the missing cells of `plan`; the rows are sent to each node once.

    Args:
        plan: the plan of a run.
        address: address of the cluster.
        patience_s: how long to wait for a node if there is none.

    Raises:
        UnavailableError: no Ray, no cluster, no node left, or cells whose workers died repeatedly.
    """
    numbers = {fold.name: number for number, fold in enumerate(plan.trial.folds)}
    cells = {(c.contender.name, numbers[c.fold.name], c.seed): c for c in plan.missing}
    make = partial(_Folds, plan.trial)
    with RayWorkers[_Task, dict[str, Any]](address, make, patience_s=patience_s) as workers:
        for task, result in workers.run(cells):
            yield cells[task], result
        if workers.given_up:
            raise UnavailableError(
                "the workers of some fits died repeatedly",
                got=", ".join(str(cells[task].file) for task in workers.given_up),
                hint="run these without --ray to see why",
            )


class _Folds:
    """Holds the measurements on a node, and runs the fits requested of it."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial

    def __call__(self, task: _Task) -> dict[str, Any]:
        name, fold, seed = task
        return run_cell(self.trial, Cell(contenders([name])[0], self.trial.folds[fold], seed))
