"""A training's answers to users about its held-out pairs, stored with the run for later comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.sets import read_sets
from datasets.tables import write_table
from models.features import Floats

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "held_out"
_ANSWERS = "answers.parquet"
_ROW = ["set_id", "member"]
# Set ids are unique in their own tables only, so jobs and device tell whether a set is the same.
_SAME = [*_ROW, "device", "workload"]


@dataclass(frozen=True)
class HeldOutAnswers:
    """Sets that a network was not fitted to, and its answers about them to users, who name no campaign.

    Attributes:
        colocation, solo: tidy tables of these sets.
        answers: `set_id`, `member` and `answered_ratio` (co-located / solo throughput, at most 1); NaN if there was no
            answer.
    """

    colocation: pd.DataFrame
    solo: pd.DataFrame
    answers: pd.DataFrame

    @classmethod
    def of(cls, colocation: pd.DataFrame, solo: pd.DataFrame, answered_ratio: Floats) -> HeldOutAnswers:
        """`answered_ratio` [n] in the order of the rows of `colocation`."""
        answers = colocation[_ROW].assign(answered_ratio=answered_ratio).reset_index(drop=True)
        return cls(colocation, solo, answers)

    def ratio_of(self, colocation: pd.DataFrame) -> Floats:
        """[n] the answer to each row of `colocation`; NaN for rows of other sets, whatever their ids."""
        known = self.answers.set_index(_index(self.answers, _ROW))["answered_ratio"]
        ratio = known.reindex(_index(colocation, _ROW))
        differ = _index(colocation, _SAME).symmetric_difference(_index(self.colocation, _SAME))
        others = colocation.set_id.astype(str).isin(set(differ.get_level_values("set_id")))
        answer: Floats = ratio.to_numpy(dtype=float, copy=True)
        answer[others.to_numpy(dtype=bool)] = float("nan")
        return answer

    def log(self, run_id: str) -> None:
        """Store it as an artifact of an MLflow run."""
        import tempfile

        import mlflow

        with tempfile.TemporaryDirectory() as name:
            write_table(name, "colocation", self.colocation)
            write_table(name, "solo", self.solo)
            self.answers.to_parquet(Path(name) / _ANSWERS, index=False)
            mlflow.MlflowClient().log_artifacts(run_id, name, FOLDER)


def _index(frame: pd.DataFrame, columns: list[str]) -> pd.MultiIndex:
    import pandas as pd

    return pd.MultiIndex.from_frame(frame[columns].astype({"member": int}).astype(str))


def held_out_of(run_id: str | None) -> HeldOutAnswers | None:
    """Load the artifact of MLflow run `run_id`; None if it has none (fine-tuning compares no held-out
    pairs)."""
    import tempfile

    import mlflow
    import pandas as pd
    from mlflow.exceptions import MlflowException

    if run_id is None:
        return None
    client = mlflow.MlflowClient()
    try:
        if not client.list_artifacts(run_id, FOLDER):
            return None
        with tempfile.TemporaryDirectory() as name:
            folder = Path(client.download_artifacts(run_id, FOLDER, name))
            colocation, solo = read_sets(folder, disturbed=True)
            return HeldOutAnswers(colocation, solo, pd.read_parquet(folder / _ANSWERS))
    except (MlflowException, OSError):
        return None
