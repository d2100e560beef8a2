"""The shipped checkpoint as a contender: nothing is fitted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle
from profiling.workload import ColocationSet, SoloProfile, Workload

if TYPE_CHECKING:
    from predictor.types import Prediction

_OF_SET = {"set_memory_bytes": "total_memory_bytes", "set_utilization_ratio": "total_utilization_ratio"}


class ShippedPredictor:
    """Queries the predictor that ships with the project."""

    def fit(self, train: Bundle, seed: int = 0) -> ShippedPredictor:  # noqa: ARG002
        """Load the checkpoint; `train` and `seed` are not used.

        Raises:
            UnavailableError, InputError: as `load_predictor` does.
        """
        from predictor import load_predictor

        self.predictor_ = load_predictor("default")
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`."""
        return self._ask(test)[:, 0]

    def predict_interval(self, test: Bundle) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ends of the 90 % intervals, [n] each."""
        answer = self._ask(test)
        return answer[:, 1], answer[:, 2]

    def _ask(self, test: Bundle) -> NDArray[np.float64]:
        """[n, 3] value, lower, upper.

        The last answer is cached, because values and intervals are queried separately.
        """
        if getattr(self, "asked_", None) is test:
            return self.answer_
        sets = colocation_sets(test)
        answers: list[Prediction] = list(self.predictor_.predict_many(list(sets.values())))
        by_id = dict(zip(sets, answers, strict=True))
        positions = test.colocation.groupby("set_id", sort=False).cumcount().loc[test.rows.index]
        quantities = []
        for set_id, position in zip(test.rows["set_id"], positions, strict=True):
            answer: Any = by_id[set_id]
            quantities.append(
                answer.members[position].throughput_ratio
                if test.target == "throughput_ratio"
                else getattr(answer, _OF_SET[test.target])
            )
        self.asked_ = test
        self.answer_: NDArray[np.float64] = np.array([[q.value, q.lower, q.upper] for q in quantities])
        return self.answer_


def colocation_sets(bundle: Bundle) -> dict[str, ColocationSet]:
    """Set id -> set, with members in the table's order and the solo profiles in `bundle.solo`."""
    from predictor.examples.examples import solo_profiles

    profiles = solo_profiles(bundle.solo)
    sets = {}
    for set_id, rows in bundle.colocation.groupby("set_id", sort=False):
        first = rows.iloc[0]
        campaign, device = str(first["campaign"]), str(first["device"])
        members = tuple(
            replace(Workload.parse(spec), solo=profiles.get((campaign, device, spec), SoloProfile()))
            for spec in rows["workload"]
        )
        sets[str(set_id)] = ColocationSet(device, members, first["sharing"])
    return sets
