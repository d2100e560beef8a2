"""Prometheus metrics, in base units, one registry per application."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from predictor.types import Quantity

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
# Pairs of device and job with metrics of their own.
_MOST_LABELS = 500
# Of the latest observation in the moving mean.
_DRIFT_WEIGHT = 0.1
DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


class Metrics:
    """What an operator watches. With several workers the values are summed over processes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        shared: dict[str, Any] = {"registry": self.registry, "namespace": "cotenant"}
        self.request_duration = Histogram(
            "request_duration_seconds",
            "Time from the first byte of a request to the last of its answer",
            ("route", "method", "status"),
            buckets=_SECONDS,
            **shared,
        )
        self.requests_in_flight = Gauge(
            "requests_in_flight", "Requests being answered", multiprocess_mode="livesum", **shared
        )
        self.refused = Counter(
            "requests_refused", "Requests refused before they were handled", ("reason",), **shared
        )
        self.connections_ended = Counter(
            "connections_ended",
            "Connections that the service ended, by the limit that they met",
            ("limit",),
            **shared,
        )
        self.predictions = Counter("predictions", "Co-location sets by outcome", ("outcome",), **shared)
        self.placements = Counter("placements", "Placement decisions by outcome", ("outcome",), **shared)
        self.placed = Counter(
            "placed_jobs",
            "Jobs that were placed, by device type; a MIG slice is one, such as a100:mig=3g",
            ("device",),
            **shared,
        )
        self.decision_duration = Histogram(
            "placement_decision_seconds", "Time to choose a GPU", buckets=_SECONDS, **shared
        )
        self.lane_queue = Gauge(
            "lane_queue_length",
            "Calls that wait for a lane",
            ("lane",),
            multiprocess_mode="livesum",
            **shared,
        )
        self.captures = Counter(
            "captures", "Graphs captured for a request, by outcome", ("outcome",), **shared
        )
        self.reloads = Counter("model_reloads", "Model loads by outcome", ("outcome",), **shared)
        for outcome in ("loaded", "refused", "failed"):
            self.reloads.labels(
                outcome
            )  # a count that begins at 1 is no increase to Prometheus, nor to the alert
        self.model_info = Gauge(
            "model_info", "1 for the version that serves", ("version",), multiprocess_mode="livemax", **shared
        )
        self.error_ratio = Histogram(
            "prediction_error_ratio",
            "Observed step time against the predicted one: |predicted - observed| / observed",
            buckets=_RATIOS,
            **shared,
        )
        self.observations = Counter(
            "observations", "Observed step times, by whether the interval held them", ("covered",), **shared
        )
        self.log_error = Counter(
            "observed_log_error",
            "Sum of |log(observed / predicted step time)|; of the model itself, or corrected by what was observed before",
            ("device", "job", "answer"),
            **shared,
        )
        self.log_drift = Gauge(
            "observed_log_ratio",
            "Moving mean of log(observed / predicted step time) in the process that received the last one",
            ("device", "job", "answer"),
            multiprocess_mode="mostrecent",
            **shared,
        )
        self.observed = Counter(
            "observed_step_times",
            "Observed step times, by whether the 90 % interval held them",
            ("device", "job", "answer", "covered"),
            **shared,
        )
        self._labels: set[tuple[str, str]] = set()
        self._drift: dict[tuple[str, str, str], float] = {}
        self._version: str | None = None

    def observe(self, device: str, job: str, answer: str, step_time_s: float, predicted: Quantity) -> None:
        """Count an observed step time beside what was predicted for it.

        Args:
            device, job: its device and the name of its model; beyond some hundreds of both they are counted as `other`.
            answer: `model` or `corrected`.
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
        """Mark `version` as the one that serves."""
        if self._version is not None and self._version != version:
            self.model_info.labels(self._version).set(0)
        self.model_info.labels(version).set(1)
        self._version = version

    def render(self) -> bytes:
        """The exposition text; of all worker processes where there are several."""
        if DIRECTORY_VARIABLE in os.environ:
            _forget_dead(Path(os.environ[DIRECTORY_VARIABLE]))
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
            return generate_latest(registry)
        return generate_latest(self.registry)

    def close(self) -> None:
        """Take this process's live gauges out of the sum."""
        if DIRECTORY_VARIABLE in os.environ and Path(os.environ[DIRECTORY_VARIABLE]).is_dir():
            mark_process_dead(os.getpid())


def _forget_dead(folder: Path) -> None:
    """Take the live gauges of processes that were killed out of the sum."""
    for path in folder.glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            mark_process_dead(int(pid))
