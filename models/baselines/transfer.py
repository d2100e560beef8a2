"""Transfer of step times: a job's time in other settings, times the median ratio of jobs in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from datasets.bundle import Bundle
from models.baselines.columns import group_names


class TransferPredictor:
    """The geometric mean over the other settings in which the job ran.

    Only the settings that agree with the queried one in the most columns are used.

    Args:
        job: columns that identify a job, without the batch size.
        setting: columns that make up a setting.
    """

    def __init__(self, job: Sequence[str], setting: Sequence[str]) -> None:
        self.job, self.setting = tuple(job), tuple(setting)

    def fit(self, train: Bundle, seed: int = 0) -> TransferPredictor:  # noqa: ARG002
        """Learn times per sample from the measured points of `train`; `seed` is not used.

        Raises:
            InputError: no measured points.
        """
        points = train.learned_points()
        rows = train.rows[points]
        batch = rows["batch_size"].to_numpy(dtype=np.float64)
        per_sample = pd.DataFrame(
            {
                "job": group_names(rows, self.job),
                "setting": group_names(rows, self.setting),
                "log": np.log(train.y[points] / batch),
            }
        )
        # [jobs, settings]
        self.log_ = per_sample.pivot_table(index="job", columns="setting", values="log", aggfunc="mean")
        parts = rows[list(self.setting)].astype(str).assign(name=per_sample["setting"].to_numpy())
        self.parts_ = parts.drop_duplicates("name").set_index("name")
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`; NaN if the job ran nowhere else, or no job ran in its setting."""
        rows = test.rows
        names = group_names(rows, self.setting)
        result = np.full(len(rows), np.nan)
        for name in np.unique(names.astype(str)):
            if name in self.log_:
                here = names == name
                result[here] = self._in_setting(name, group_names(rows[here], self.job))
        return np.exp(result) * rows["batch_size"].to_numpy(dtype=np.float64)

    def _in_setting(self, name: str, jobs: NDArray[np.object_]) -> NDArray[np.float64]:
        """[n] log times per sample."""
        own = self.log_[name]
        others = [other for other in self.log_ if other != name]
        alike = (self.parts_.loc[others] == self.parts_.loc[name]).sum(axis=1)
        known = self.log_[others].reindex(jobs).to_numpy()
        ratio = np.array([_median(own - self.log_[other]) for other in others])
        answers = known + ratio
        weights = np.where(np.isnan(answers), -1.0, alike.to_numpy(dtype=np.float64))
        nearest = (weights == weights.max(axis=1, keepdims=True, initial=-1.0)) & (weights >= 0)
        counted = np.where(nearest, answers, 0.0).sum(axis=1)
        return np.where(nearest.any(axis=1), counted / np.maximum(nearest.sum(axis=1), 1), np.nan)


def _median(gap: pd.Series) -> float:
    measured = gap.dropna()
    return float(measured.median()) if len(measured) else np.nan
