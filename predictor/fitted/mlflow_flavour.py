"""Code that MLflow runs to load a logged predictor.

This is "models from code": the file is imported, and nothing is unpickled.
"""

from __future__ import annotations

from typing import Any

import mlflow
import mlflow.pyfunc
import pandas as pd


# MLflow inspects the type hints of `predict` and only accepts lists and data frames.
class LoggedPredictor(mlflow.pyfunc.PythonModel):  # type: ignore[name-defined]
    """Rows (set_id, device, sharing, workload) in, predictions per member out."""

    def load_context(self, context: Any) -> None:
        from predictor.fitted.checkpoint import load

        self.predictor = load(context.artifacts["predictor"])

    def predict(
        self,
        context: Any,  # noqa: ARG002
        model_input: pd.DataFrame,
        params: dict[str, Any] | None = None,  # noqa: ARG002
    ) -> pd.DataFrame:
        from profiling.workload import ColocationSet, Workload

        frame = model_input.reset_index(drop=True)
        groups = [group for _, group in frame.groupby("set_id", sort=False)]
        sets = [
            ColocationSet(g.device.iloc[0], tuple(Workload.parse(w) for w in g.workload), g.sharing.iloc[0])
            for g in groups
        ]
        arrays = self.predictor.predict_arrays(sets)
        result = frame[["set_id", "workload"]].copy()
        for name in ("slowdown", "step_time_s", "memory_bytes", "utilization_ratio"):
            values = getattr(arrays, name)
            result[name] = 0.0
            for k, group in enumerate(groups):
                result.loc[group.index, name] = values[k, : len(group)]
        return result


mlflow.models.set_model(LoggedPredictor())
