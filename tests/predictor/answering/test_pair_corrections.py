from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from models.features import Floats
from predictor.answering.job_table import JobTable
from predictor.answering.pair_corrections import corrected_excess
from predictor.examples.examples import Integers
from predictor.predictor import Predictor
from profiling.workload import Workload
from tests.predictor.synthetic import MODELS

JOBS = [Workload(name, 32) for name in MODELS][:3]


def test_partners_count_by_how_busy_they_are() -> None:
    def of_pairs(pairs: Integers) -> Floats:
        return np.log(1.0 + pairs[:, ::-1])  # beside row 1 twice as slow, beside row 3 four times

    busy = np.array([0.5, 0.2, 0.0, 0.6])
    rows = np.array([[0, 1, 3, -1], [0, 1, 2, -1], [0, 1, -1, -1], [2, 2, 2, -1], [0, -1, -1, -1]])
    excess = np.where(rows >= 0, 0.5, 0.0)
    corrected = corrected_excess(excess, rows, of_pairs, busy)
    of_first = np.log([2.0, 4.0]) @ [0.2, 0.6] / 0.8
    assert corrected[0, 0] == pytest.approx(1.5 * np.exp(of_first) - 1.0)
    assert corrected[1, 0] == pytest.approx(1.5 * 2.0 - 1.0)  # an idle partner does not count
    np.testing.assert_array_equal(corrected[2:], excess[2:])
    assert (corrected[rows < 0] == 0.0).all()


def test_corrections_make_no_job_faster_than_alone() -> None:
    rows = np.array([[0, 1, 2]])
    result = corrected_excess(np.full((1, 3), 0.1), rows, lambda p: np.full(p.shape, -1.0), np.ones(3))
    assert result.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("device", "expected"), [("v100", True), ("h100", False)])
def test_the_process_corrects_larger_sets_on_the_devices_that_it_was_fitted_to(
    predictor: Predictor, device: str, expected: bool
) -> None:
    fitted = predictor.fitted_
    assert fitted.model.process is not None
    answers = []
    for model in (fitted.model, replace(fitted.model, process=None)):
        table = JobTable(model, fitted.heads, fitted.manifest.coverage)
        rows = np.array([table.rows([(w, device, "time-slice") for w in JOBS])])
        answers.append(table.excess(rows, "time-slice"))
    assert np.allclose(*answers, rtol=1e-6) != expected
