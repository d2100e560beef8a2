"""One spelling of a job to all that is learned of it, also of a registered graph that is a zoo model's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from profiling.errors import CotenantError, InputError
from profiling.graph import ComputationGraph
from profiling.spelling import in_short
from profiling.workload import CAPTURED, REGISTERED, Workload
from profiling.zoo import is_model

if TYPE_CHECKING:
    from predictor.examples.featurizer import Featurizer

_FP32 = Workload("any").precision


class Spelling:
    """`in_short`, by content: a job of a registered graph is the zoo's if the zoo's job has the same graph.

    Args:
        featurizer: reads graphs; without one, registered graphs keep their names.
    """

    def __init__(self, featurizer: Featurizer | None) -> None:
        self._featurizer = featurizer
        # Registered graphs to the zoo's jobs, None without one.
        self._zoo_jobs: dict[str, Workload | None] = {}

    def __call__(self, workload: Workload) -> Workload:
        job = self._zoo_job(workload.model) if workload.model.startswith(REGISTERED) else None
        # In another precision, the zoo's graph is another.
        if job is None or workload.precision not in (_FP32, job.precision):
            return in_short(workload)
        return in_short(replace(workload, **{name: getattr(job, name) for name in CAPTURED}))

    def _zoo_job(self, model: str) -> Workload | None:
        if self._featurizer is None:
            return None
        if model not in self._zoo_jobs:
            try:
                graph = self._featurizer.graph(Workload(model))
                job = _described(graph)
                is_same = job is not None and self._featurizer.graph(job).content_hash == graph.content_hash
            except InputError:  # captured with options that the zoo refuses
                is_same = False
            except CotenantError:  # not registered any more, or not captured in time: it may be later
                return None
            self._zoo_jobs[model] = job if is_same else None
        return self._zoo_jobs[model]


def _described(graph: ComputationGraph) -> Workload | None:
    """The zoo's job with the name and the options of a graph; None if it has none."""
    if not is_model(graph.name):
        return None
    options = {name: graph.options[name] for name in CAPTURED if name in graph.options}
    return Workload.from_mapping({**options, "model": graph.name, "batch_size": graph.batch_size})
