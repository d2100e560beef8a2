"""Measured sets as members and rows of the process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from models.features import Floats
from predictor.examples.examples import Examples
from predictor.examples.featurizer import Featurizer
from predictor.gaussian_process.kernel import Members
from predictor.gaussian_process.known_members import Numbers
from predictor.gaussian_process.members import MEMBER_WIDTH, member_features, occupancies
from predictor.gaussian_process.rows import Rows, partners_of
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
