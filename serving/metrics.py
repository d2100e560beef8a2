"""Prometheus metrics, in base units, one registry per application."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from predictor.types import Quantity

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
# Most (device, job) pairs with separate metrics.
_MOST_LABELS = 500
# Weight of the latest observation in the moving mean.
_DRIFT_WEIGHT = 0.1
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """The service's metrics. With several workers the values are summed over processes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="cotenant", registry=self.registry)
        gauge = partial(Gauge, namespace="cotenant", registry=self.registry)
        histogram = partial(Histogram, namespace="cotenant", registry=self.registry)
        self.request_duration = histogram(
            "request_duration_seconds",
            "Time from the first byte of a request to the last byte of its response",
            ("route", "method", "status"),
            buckets=_SECONDS,
        )
        self.requests_in_flight = gauge(
            "requests_in_flight", "Requests in progress", multiprocess_mode="livesum"
        )
        self.refused = counter("requests_refused", "Requests refused", ("reason",))
        self.connections_ended = counter(
            "connections_ended", "Connections closed by the service, by the limit that they hit", ("limit",)
        )
        # Series with an alert exist before the first event: Prometheus sees no increase in one that starts at 1.
        self.refused.labels("store")
        self.faults = counter("faults", "Requests that failed with an internal error")
        self.predictions = counter("predictions", "Co-location sets by outcome", ("outcome",))
        self.placements = counter("placements", "Placement decisions by outcome", ("outcome",))
        self.placed = counter(
            "placed_jobs",
            "Jobs placed, by device type; a MIG slice is a type, such as a100:mig=3g",
            ("device",),
        )
        self.cluster_outdated = gauge(
            "cluster_outdated",
            "1 if the scheduler that keeps the stored cluster has not stored it again in time",
            multiprocess_mode="livemax",
        )
        self.decision_duration = histogram(
            "placement_decision_seconds", "Time to choose a GPU", buckets=_SECONDS
        )
        self.lane_queue = gauge(
            "lane_queue_length", "Calls waiting for a lane", ("lane",), multiprocess_mode="livesum"
        )
        self.captures = counter("captures", "Graphs captured for a request, by outcome", ("outcome",))
        self.reloads = counter("model_reloads", "Model loads by outcome", ("outcome",))
        for outcome in ("loaded", "refused", "failed"):
            self.reloads.labels(outcome)
        self.model_info = gauge(
            "model_info", "1 for the version in service", ("version",), multiprocess_mode="livemax"
        )
        self.error_ratio = histogram(
            "prediction_error_ratio",
            "Error of the predicted step time: |predicted - observed| / observed",
            buckets=_RATIOS,
        )
        self.observations = counter(
            "observations", "Observed step times, by whether they were within the interval", ("covered",)
        )
        self.out_of_memory = counter(
            "out_of_memory",
            "Sets reported to have run out of memory, by whether they were predicted to fit",
            ("predicted_to_fit",),
        )
        for fits in ("true", "false"):
            self.out_of_memory.labels(fits)
        self.log_error = counter(
            "observed_log_error",
            "Sum of |log(observed / predicted step time)|; for the model itself, or corrected by earlier "
            "observations",
            ("device", "job", "answer"),
        )
        self.log_drift = gauge(
            "observed_log_ratio",
            "Moving mean of log(observed / predicted step time) in the process that received the last "
            "observation",
            ("device", "job", "answer"),
            multiprocess_mode="mostrecent",
        )
        self.observed = counter(
            "observed_step_times",
            "Observed step times, by whether they were within the 90 % interval",
            ("device", "job", "answer", "covered"),
        )
        self._labels: set[tuple[str, str]] = set()
        self._drift: dict[tuple[str, str, str], float] = {}
        self._version: str | None = None

    def observe(self, device: str, job: str, answer: str, step_time_s: float, predicted: Quantity) -> None:
        """Record an observed step time and its prediction.

        Args:
            device, job: its device and the name of its model; beyond some hundreds of pairs, counted as
                `other`.
            answer: who predicted: `model`, or `corrected` with the earlier observations.
            step_time_s: observed.
            predicted: the predicted step time, seconds.
        """
        if (device, job) not in self._labels and len(self._labels) >= _MOST_LABELS:
            device = job = "other"
        self._labels.add((device, job))
        ratio = math.log(step_time_s / predicted.value)
        self.log_error.labels(device, job, answer).inc(abs(ratio))
        covered = predicted.lower <= step_time_s <= predicted.upper
        self.observed.labels(device, job, answer, str(covered).lower()).inc()
        key = device, job, answer
        before = self._drift.get(key, ratio)
        self._drift[key] = before + _DRIFT_WEIGHT * (ratio - before)
        self.log_drift.labels(*key).set(self._drift[key])

    def serve_version(self, version: str) -> None:
        """Mark `version` as the one in service."""
        if self._version is not None and self._version != version:
            self.model_info.labels(self._version).set(0)
        self.model_info.labels(version).set(1)
        self._version = version

    def render(self) -> bytes:
        """The exposition text, covering all worker processes."""
        if DIRECTORY_VARIABLE in os.environ:
            _forget_dead(Path(os.environ[DIRECTORY_VARIABLE]))
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self.registry)

    def close(self) -> None:
        """Remove this process's live gauges from the sum."""
        if DIRECTORY_VARIABLE in os.environ and Path(os.environ[DIRECTORY_VARIABLE]).is_dir():
            mark_process_dead(os.getpid())


def _forget_dead(folder: Path) -> None:
    """Remove the live gauges of killed processes from the sum."""
    for path in folder.glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            mark_process_dead(int(pid))
