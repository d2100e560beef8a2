"""Measured sets as members and rows of the process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from models.features import Floats
from predictor.examples.examples import Examples, Integers
from predictor.examples.featurizer import Featurizer
from predictor.learning.kernel import Members
from predictor.learning.known_members import Numbers
from predictor.learning.members import MEMBER_WIDTH, member_features, occupancies
from predictor.learning.rows import Rows
from profiling.workload import Workload


@dataclass(frozen=True)
class MeasuredRows:
    """T rows of measured sets, in the order of `Examples`.

    Attributes:
        features: [V, MEMBER_WIDTH] of the distinct members.
        members: their numbers; places are empty until parameters are known.
        rows: every member beside its partners.
        models, jobs, settings: architectures, jobs and settings (device, sharing mode, campaign) that the
            numbers stand for.
    """

    features: Floats
    members: Members
    rows: Rows
    models: tuple[str, ...]
    jobs: tuple[Workload, ...]
    settings: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, examples: Examples, featurizer: Featurizer) -> MeasuredRows:
        """Build the rows of `examples`.

        Members are distinct if they differ in job, solo measurements, device, sharing mode or campaign.
        """
        index: dict[tuple[Workload, str, str, str], int] = {}
        own = np.array(
            [
                index.setdefault((w, d, m, c), len(index))
                for w, d, m, c in zip(
                    examples.workloads, examples.devices, examples.mode, examples.campaign, strict=True
                )
            ],
            dtype=np.int64,
        )
        models, jobs, settings = Numbers(), Numbers(), Numbers()
        features = np.zeros((len(index), MEMBER_WIDTH))
        columns = np.zeros((3, len(index)), np.int64)
        for row, (workload, device, mode, campaign) in enumerate(index):
            expected_s = featurizer.job(workload, device).demand.step_s
            features[row] = member_features(workload, device, expected_s, featurizer)
            plain = workload.without_solo()
            columns[:, row] = models[workload.model], jobs[plain], settings[device, mode, campaign]
        members = Members(np.zeros((len(index), 0)), *columns)
        members = replace(members, occupancy=occupancies(features))
        rows = Rows(own, partners_of(own, examples.set_index))
        return cls(features, members, rows, tuple(models), tuple(jobs), tuple(settings))  # type: ignore[arg-type]


def partners_of(own: Integers, set_index: Integers) -> Integers:
    """[T, M] members of the same set beside each row, -1 where there are fewer.

    Rows of a set must be adjacent.
    """
    start = np.searchsorted(set_index, set_index)
    size = np.bincount(set_index)[set_index] if len(set_index) else np.zeros(0, np.int64)
    most = int(size.max(initial=1))
    result = np.full((len(own), max(1, most - 1)), -1, dtype=np.int64)
    place = np.arange(len(own)) - start
    for offset in range(1, most):
        present = offset < size
        other = start + (place + offset) % np.maximum(size, 1)
        result[present, offset - 1] = own[other[present]]
    return result
