"""One spelling of a job to all that is learned of it, also of a registered graph, which may be a zoo model's."""

from __future__ import annotations

import hashlib
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
_ANY = Workload("any")
_FP32 = _ANY.precision
_OF_TRAINING = {name: getattr(_ANY, name) for name in ("optimizer", "frozen_prefix", *_ONE_EACH)}
# Captured options that order the step times and memory of a network's jobs, instead of making another network.
_OF_LOAD = ("batch_size", "frozen_prefix", *_ONE_EACH)


class Spelling:
    """`in_short`, by content: a job of a registered graph is the zoo's if the zoo's job has the same graph, and otherwise
    has the options that its graph was captured with, stated or not. Options of training do not count in inference.

    Args:
        featurizer: reads graphs; without one, registered graphs keep their names.
    """

    def __init__(self, featurizer: Featurizer | None) -> None:
        self._featurizer = featurizer
        # Registered graphs to the zoo's jobs, None without one.
        self._zoo_jobs: dict[str, Workload | None] = {}
        self._networks: dict[str, str] = {}

    def __call__(self, workload: Workload) -> Workload:
        job = self._spelled(workload)
        # Nothing is updated or kept in inference, so it is the same job without what says how.
        return replace(job, **_OF_TRAINING) if job.mode == "inference" else job

    def _spelled(self, workload: Workload) -> Workload:
        if not workload.model.startswith(REGISTERED):
            return in_short(workload)
        job = self._zoo_job(workload.model)
        # In another precision, the zoo's graph is another.
        if job is None or workload.precision not in (_FP32, job.precision):
            return in_short(self._captured(workload))
        return in_short(replace(workload, **{name: getattr(job, name) for name in CAPTURED}))

    def network(self, workload: Workload) -> Workload:
        """The job as spelled, with a name that captures of the same network with other batch sizes share."""
        job = self(workload)
        return replace(job, model=self._network(job.model)) if job.model.startswith(REGISTERED) else job

    def _network(self, model: str) -> str:
        """The registered graph's own name if it cannot be read."""
        if self._featurizer is None:
            return model
        if model not in self._networks:
            try:
                self._networks[model] = _digest(self._featurizer.graph(Workload(model)))
            except CotenantError:  # not registered any more: it may be later
                return model
        return self._networks[model]

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


def _digest(graph: ComputationGraph) -> str:
    """What graphs have in common that are captured of one network, with samples of one size, in different batches."""
    options = sorted((name, value) for name, value in graph.options.items() if name not in _OF_LOAD)
    # What has no parameters may do the same for any batch: the loss adds up a mean.
    flops = [op.forward_flops / graph.batch_size * (op.parameter_bytes > 0) for op in graph.operators]
    operators = [
        (op.kind, op.parameter_bytes, op.layer_index, op.training_only, f"{per_sample:.6g}")
        for op, per_sample in zip(graph.operators, flops, strict=True)
    ]
    input_bytes = f"{graph.host_input_bytes / graph.step_samples:.6g}"
    text = repr((graph.parameter_count, input_bytes, options, operators))
    return f"{REGISTERED}network-{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def _described(graph: ComputationGraph) -> Workload | None:
    """The zoo's job with the name and the options of a graph; None if it has none."""
    if not is_model(graph.name):
        return None
    options = {name: graph.options[name] for name in CAPTURED if name in graph.options}
    return Workload.from_mapping({**options, "model": graph.name, "batch_size": graph.batch_size})
