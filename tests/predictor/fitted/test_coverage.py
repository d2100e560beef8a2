from __future__ import annotations

import pytest

from predictor.fitted.coverage import Coverage
from profiling.workload import ColocationSet, Workload

JOBS = (Workload("alpha"), Workload("beta", precision="amp"))
COVERAGE = Coverage.of(JOBS, ("v100", "k80"), ("mps", "time-slice"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (ColocationSet("v100", JOBS, "mps"), []),
        (ColocationSet("v100", JOBS, "time-slice"), ["time slicing was measured on k80 only"]),
        (
            ColocationSet("a100", JOBS, "mps"),
            ["co-location was never measured on this GPU type (a100)", "MPS was measured on v100 only"],
        ),
        (ColocationSet("k80", JOBS, "mig"), ["MIG was never measured"]),
        (ColocationSet("a100", JOBS[:1], "mps"), []),
        (
            ColocationSet("v100", (JOBS[0], Workload("beta", precision="bf16", mode="inference")), "mps"),
            [
                "precision bf16 was never measured under co-location",
                "mode inference was never measured under co-location",
            ],
        ),
    ],
)
def test_reports_what_was_never_measured(asked: ColocationSet, expected: list[str]) -> None:
    assert COVERAGE.never_measured(asked.device, asked.sharing, asked.workloads) == expected


def test_old_predictors_report_nothing_and_coverages_merge() -> None:
    assert Coverage().never_measured("a100", "mig", JOBS) == []
    both = COVERAGE.joined(Coverage.of(JOBS, ("a100", "a100"), ("mig", "mig")))
    assert both.devices == ("a100", "k80", "v100")
    assert "mig on a100" in both.sharing
