"""One spelling of a job to all that is learned of it, also of a registered graph, which may be a zoo model's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from profiling.capture.options import as_captured
from profiling.errors import CotenantError, InputError
from profiling.graph import ComputationGraph
from profiling.spelling import in_short
from profiling.workload import CAPTURED, REGISTERED, Workload
from profiling.zoo import is_model

if TYPE_CHECKING:
    from predictor.examples.featurizer import Featurizer

# A graph has one of each, and precision and frozen layers unless a job states others.
_ONE_EACH = ("gradient_accumulation", "activation_checkpointing")
_FP32 = Workload("any").precision


class Spelling:
    """`in_short`, by content: a job of a registered graph is the zoo's if the zoo's job has the same graph, and otherwise
    has the options that its graph was captured with, stated or not.

    Args:
        featurizer: reads graphs; without one, registered graphs keep their names.
    """

    def __init__(self, featurizer: Featurizer | None) -> None:
        self._featurizer = featurizer
        # Registered graphs to the zoo's jobs, None without one.
        self._zoo_jobs: dict[str, Workload | None] = {}

    def __call__(self, workload: Workload) -> Workload:
        if not workload.model.startswith(REGISTERED):
            return in_short(workload)
        job = self._zoo_job(workload.model)
        # In another precision, the zoo's graph is another.
        if job is None or workload.precision not in (_FP32, job.precision):
            return in_short(self._captured(workload))
        return in_short(replace(workload, **{name: getattr(job, name) for name in CAPTURED}))

    def _captured(self, workload: Workload) -> Workload:
        """The job with the options of its graph; as it is without a graph, or if it states what the graph lacks."""
        if self._featurizer is None:
            return workload
        try:
            graph = self._featurizer.graph(Workload(workload.model))
            job = as_captured(workload, graph)
        except CotenantError:
            return workload
        return replace(job, **{name: graph.options[name] for name in _ONE_EACH if name in graph.options})

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
