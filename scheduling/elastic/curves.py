"""Agents for the jobs of any trace.

Step times come from truth and belief, freezing gains from the graphs, norms from our own runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from predictor.examples.featurizer import shared_featurizer
from predictor.freezing import layer_throughput
from predictor.types import Floats
from profiling.files import read_json
from profiling.graph import ComputationGraph
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.core.set_cache import SetCache
from scheduling.core.snapshot import ClusterSnapshot
from scheduling.core.state import SchedulingSnapshot
from scheduling.core.truth import SCALING, SetTruth
from scheduling.elastic.agent import ElasticAgent, size_rates
from scheduling.elastic.penalty import FreezingGuards
from scheduling.placement.gangs import solo_step_s

NORM_CURVES = Path(__file__).parent / "gradient_norms.json"
# Candidate prefixes of a job, and the largest as a share of its layers.
_CANDIDATES, _DEEPEST = 10, 0.9


def norm_curve(name: str, depth: Floats) -> tuple[Floats, Floats]:
    """(progress [P], S [P, K]) of prefixes at `depth` [K] (share of the layers), from our own training run.

    A prefix that had not settled in at least half of the trainings must not be frozen yet, as if S were 1.
    """
    body = read_json(NORM_CURVES)
    measured = body["curves"][name]
    rows, settled = np.array(measured["norm_shares"]), np.array(measured["settled_ratio"])
    own = np.linspace(0.0, 1.0, rows.shape[1])
    shares = np.array([np.interp(depth, own, row) for row in rows])
    ready = np.array([np.interp(depth, own, row) for row in settled]) >= 0.5
    return np.array(body["progress"]), np.where(ready | (depth == 0.0), shares, 1.0)


def freezing_agents(
    cluster: ClusterSnapshot, truth: SetTruth, belief: SetCache
) -> Callable[[TraceJob], ElasticAgent]:
    """Creates agents of jobs: solo step times from `truth` and `belief`, freezing gains from the cost model.

    Truth and belief have the same gains. Jobs of mostly convolutions have the norms of our CNN, all others
    those of our LSTM, because the actual effect of freezing on a logged job is unknown.
    """
    snapshot = SchedulingSnapshot(cluster)

    @cache
    def candidates(workload: Workload) -> tuple[tuple[int, ...], Floats, Floats]:
        graph = shared_featurizer().graph(workload)
        layers = len(graph.layers)
        depths = {int(layers * _DEEPEST * i / (_CANDIDATES - 1)) for i in range(_CANDIDATES)}
        prefixes = tuple(sorted(depths))
        curve = "cnn-digits" if _is_convolutional(graph) else "lstm-scratch"
        grid, shares = norm_curve(curve, np.array(prefixes) / max(layers, 1))
        return prefixes, grid, shares

    @cache
    def gains(workload: Workload, device: str) -> Floats:
        prefixes = candidates(workload)[0]
        return np.array([layer_throughput(workload, device, k).speedup for k in prefixes])

    def agent(job: TraceJob) -> ElasticAgent:
        workload = job.workload.without_solo()
        prefixes, grid, shares = candidates(workload)

        def rates(steps: list[float], scaling: float) -> dict[str, Floats]:
            alone = {d: size_rates(job, step, scaling) for d, step in zip(snapshot.types, steps, strict=True)}
            return {d: rate[:, None] * gains(workload, d)[None, :] for d, rate in alone.items()}

        really = rates(list(solo_step_s(snapshot, truth.cache, job.workload)), truth.scaling)
        believed = rates(list(solo_step_s(snapshot, belief, job.workload)), SCALING)
        first = really[snapshot.types[0]]
        return ElasticAgent(
            prefixes, first, grid, shares, FreezingGuards().kappa, rate_on=really, believed_on=believed
        )

    return agent


def _is_convolutional(graph: ComputationGraph) -> bool:
    """Whether most of its FLOPs are convolutions, unlike those of a transformer on patches of an image."""
    flops = graph.columns["forward_flops"] * graph.columns["repeat"]
    own = np.array(["convolution" in operator.kind for operator in graph.operators])
    return bool(2.0 * flops[own].sum() > flops.sum())
