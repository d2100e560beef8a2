"""The MLflow run of a training: starts with it, logs its curves, and is resumed with it after a kill."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from predictor.config import LossCallback
from predictor.fitted.mlflow_address import shown
from predictor.training.validation import VALIDATION
from profiling.ending import termination_as_exit
from profiling.errors import InputError
from profiling.files import read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

_RUN_FILE = "mlflow_run.json"
# Points of a curve are sent together, so that a slow server does not hold a training up.
_EVERY_S = 2.0
_AT_ONCE = 1000


class LiveMetrics:
    """A `LossCallback` that logs curves to a run while they grow, and passes on what it receives.

    Training losses are `loss PHASE` (`loss encoder`, `loss network 1`), errors on architectures left out
    `validation mae left out N`. The losses of those fits themselves are not logged. As a context manager, it sends
    what is left at the end.
    """

    def __init__(self, run_id: str, report: LossCallback | None = None) -> None:
        import mlflow

        self.client, self.run_id, self.report = mlflow.MlflowClient(), run_id, report
        self._logged: dict[str, int] = {}
        self._waiting: list[Any] = []
        self._sent_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def __call__(self, phase: str, step: int, steps: int, loss: float) -> None:
        name = metric_name(phase)
        if name is not None and step > self._logged_up_to(name):
            from mlflow.entities import Metric

            self._waiting.append(Metric(name, loss, int(1000 * time.time()), step))
            if time.monotonic() - self._sent_s >= _EVERY_S or len(self._waiting) >= _AT_ONCE:
                self.flush()
        if self.report is not None:
            self.report(phase, step, steps, loss)

    def _logged_up_to(self, name: str) -> int:
        """The last step logged before a kill, because a resumed loop may repeat some; 0 for a new curve."""
        if name not in self._logged:
            history = self.client.get_metric_history(self.run_id, name)
            self._logged[name] = max((point.step for point in history), default=0)
        return self._logged[name]

    def complete(self, losses: dict[str, list[float]]) -> None:
        """Send the points of curves, phase to loss by step, that a kill prevented from being sent."""
        from mlflow.entities import Metric

        self.flush()
        for phase, curve in losses.items():
            if (name := metric_name(phase)) is not None:
                sent = {point.step for point in self.client.get_metric_history(self.run_id, name)}
                now = int(1000 * time.time())
                self._waiting += [Metric(name, x, now, n) for n, x in enumerate(curve, 1) if n not in sent]
        self.flush()

    def flush(self) -> None:
        """Send the points not yet sent."""
        for start in range(0, len(self._waiting), _AT_ONCE):
            self.client.log_batch(self.run_id, metrics=self._waiting[start : start + _AT_ONCE])
        self._waiting, self._sent_s = [], time.monotonic()


def metric_name(phase: str) -> str | None:
    """Name under which a reported phase is logged; None if it is not."""
    part, _, inner = phase.rpartition(": ")
    if inner.startswith(VALIDATION):
        return f"{VALIDATION} mae {part or inner.removeprefix(VALIDATION).strip()}"
    return None if part else f"loss {phase}"


@contextmanager
def tracked(
    tracking_uri: str | None,
    experiment: str,
    name: str,
    kept: Path | None = None,
    fingerprint: str = "",
    system_metrics: bool = False,
) -> Iterator[Any]:
    """An active MLflow run; by default in an SQLite file in the working folder.

    It ends as FINISHED, as FAILED after an error, as KILLED after Ctrl-C or SIGTERM. After SIGKILL it stays
    RUNNING.

    Args:
        tracking_uri, experiment: MLflow settings.
        name: name of the run.
        kept: folder of a training that may be killed; if called again, the same run is resumed.
        fingerprint: fingerprint of that training; a run with another one is not resumed.
        system_metrics: also log CPU, memory and GPU usage.

    Raises:
        InputError: the store cannot be used.
        UnavailableError: the store fails during the run, as on a full disk.
    """
    import mlflow

    from predictor.fitted.mlflow_registry import failing_store, use_experiment, use_store

    use_store(tracking_uri)
    use_experiment(experiment)
    uri = mlflow.get_tracking_uri()
    earlier = _earlier(kept, fingerprint, uri)
    # Outside the run, whose end is also written to the store.
    with (
        failing_store(uri),
        mlflow.start_run(
            run_id=earlier, run_name=None if earlier else name, log_system_metrics=system_metrics or None
        ) as run,
    ):
        if kept is not None:
            write_json(
                kept / _RUN_FILE,
                {"run_id": run.info.run_id, "tracking_uri": shown(uri), "fingerprint": fingerprint},
            )
        try:
            with termination_as_exit():
                yield mlflow
        except (KeyboardInterrupt, SystemExit):
            mlflow.end_run("KILLED")
            raise


def _earlier(kept: Path | None, fingerprint: str, uri: str) -> str | None:
    """Id of the run started by a killed training, if it still exists."""
    import mlflow
    from mlflow.exceptions import MlflowException

    if kept is None or not (kept / _RUN_FILE).is_file():
        return None
    try:
        body = read_json(kept / _RUN_FILE)
        if body["fingerprint"] != fingerprint or body["tracking_uri"] != shown(uri):
            return None
        run = mlflow.MlflowClient().get_run(body["run_id"])
    except (InputError, MlflowException, KeyError, TypeError):
        return None
    return str(run.info.run_id) if run.info.lifecycle_stage == "active" else None


def log_tables(mlflow: Any, colocation: pd.DataFrame, solo: pd.DataFrame, source: str) -> None:
    """Log the tables as the run's dataset inputs: digest, columns, number of rows."""
    for name, table in (("colocation", colocation), ("solo", solo)):
        with warnings.catch_warnings():
            # Silence hints for serving a table's schema: integer columns, and a path that two kinds of source
            # could read.
            warnings.simplefilter("ignore", UserWarning)
            # MLflow's own digest covers neither flags nor rows beyond the first 10,000.
            digest = hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()[:8]
            dataset = mlflow.data.from_pandas(table, source=source, name=name, digest=digest)
            mlflow.log_input(dataset, context="training")


def log_scores(mlflow: Any, comparison: dict[str, dict[str, Any]]) -> None:
    """Log every number of every predictor's metrics as `NAME METRIC`, except those logged before a kill."""
    known = mlflow.get_run(mlflow.active_run().info.run_id).data.metrics
    for name, scores in comparison.items():
        numbers = {f"{name} {k}": v for k, v in scores.items() if isinstance(v, int | float)}
        mlflow.log_metrics({k: v for k, v in numbers.items() if k not in known})


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys (`training.epochs`)."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return result
