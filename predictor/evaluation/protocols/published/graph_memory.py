"""The predictor's form of a process's memory as a contender.

It takes part fitted to the fold's measured peaks, and as shipped.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from datasets.bundle import Bundle, Floats
from models.features import memory_of
from predictor.evaluation.protocols.graphs import graph_of
from predictor.evaluation.protocols.registry import Contender, register
from profiling.errors import CotenantError, InputError
from profiling.workload import SoloProfile, Workload


class GraphMemoryPredictor:
    """Memory as a weighted sum of context, state, activations and the largest workspace.

    The context is per device type; weights are non-negative and fitted to relative errors.
    """

    def fit(self, train: Bundle, seed: int) -> GraphMemoryPredictor:  # noqa: ARG002 (as its protocol)
        """Learn from the measured points of `train` with a graph.

        Raises:
            InputError: there are none.
        """
        from scipy.optimize import nnls

        points = train.learned_points()
        rows, memory = train.rows[points], train.y[points]
        parts = parts_of(rows["workload"].tolist())
        known = ~np.isnan(parts).any(1)
        if not known.any():
            raise InputError("nothing to learn from", expected="rows with a graph", got="none")
        devices = rows["device"].to_numpy(dtype=str)[known]
        self.devices_ = sorted(set(devices.tolist()))
        # In GB, so that the weights of bytes and of constants have the same order of magnitude.
        context = (devices[:, None] == np.array(self.devices_)) * 1e9
        weights, _ = nnls(
            np.concatenate([context, parts[known]], 1) / memory[known][:, None], np.ones(int(known.sum()))
        )
        self.context_, self.weights_ = weights[: len(self.devices_)] * 1e9, weights[len(self.devices_) :]
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] bytes; a device without training rows takes the median context."""
        middle = float(np.median(self.context_))
        known = dict(zip(self.devices_, self.context_, strict=True))
        context = np.array([known.get(d, middle) for d in test.rows["device"].astype(str)])
        return np.asarray(context + parts_of(test.rows["workload"].tolist()) @ self.weights_)


class ShippedMemory:
    """Memory as predicted without fitting, by `HeadCalibration`'s constants.

    Its upper bound decides whether a job fits.
    """

    def fit(self, train: Bundle, seed: int) -> ShippedMemory:  # noqa: ARG002 (as its protocol)
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] bytes."""
        return self._bytes(test)[0]

    def predict_interval(self, test: Bundle) -> tuple[Floats, Floats]:
        """([n], [n]) bytes; the state, which is known exactly, is not widened."""
        value, state = self._bytes(test)
        from predictor.fitted.device_memory import HeadCalibration

        factor = float(np.exp(HeadCalibration().memory_log_error[0]))
        return state + (value - state) / factor, state + (value - state) * factor

    def _bytes(self, test: Bundle) -> tuple[Floats, Floats]:
        from predictor.examples.featurizer import shared_featurizer
        from predictor.fitted.device_memory import HeadCalibration, member_memory_bytes

        values = np.full((2, len(test.rows)), np.nan)
        for k, (spec, device) in enumerate(zip(test.rows["workload"], test.rows["device"], strict=True)):
            try:
                job = shared_featurizer().job(Workload.parse(spec), device)
            except CotenantError:
                continue
            values[:, k] = member_memory_bytes(job, SoloProfile(), HeadCalibration()), job.demand.state_bytes
        return values[0], values[1]


def parts_of(specs: list[str]) -> Floats:
    """[n, 3] bytes of state, of live activations, and of the largest workspace; NaN without a graph.

    State is parameters and, in training, gradients and optimiser state.
    """
    return np.array([_parts(spec) for spec in specs], dtype=np.float64).reshape(-1, 3)


@lru_cache(maxsize=20_000)
def _parts(spec: str) -> tuple[float, float, float]:
    from predictor.fitted.device_memory import HeadCalibration, workspace_bytes

    graph = graph_of(spec)
    if graph is None:
        return (float("nan"),) * 3
    workload = Workload.parse(spec)
    return *memory_of(graph, workload), workspace_bytes(graph, workload.precision, HeadCalibration())


register(
    Contender(
        "graph-memory",
        GraphMemoryPredictor,
        targets=("memory_bytes",),
        partial=True,
        seconds_per_fold=2,
    )
)
register(
    Contender(
        "shipped-memory",
        ShippedMemory,
        targets=("memory_bytes",),
        partial=True,
        seconds_per_fold=5,
    )
)
