from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from models.features import Floats
from predictor.answering.bounds import (
    at_most_all_the_time,
    excess_of_parts,
    never_faster_with_more,
    no_busier_than_pairs,
    parts_by_size,
)
from predictor.answering.job_table import JobTable
from predictor.examples.examples import Integers
from predictor.fitted.coverage import Coverage
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.synthetic import MODELS

JOBS = tuple(Workload(name, 32) for name in MODELS)


def crowded(rows: Integers) -> Floats:
    """Pairs slow each other by the sum of their numbers; larger sets by less, which must be corrected."""
    present = rows >= 0
    together = np.where(present, rows + 1.0, 0.0).sum(1, keepdims=True)
    size = present.sum(1, keepdims=True)
    return np.asarray(np.where(present & (size > 1), together / np.maximum(size - 1, 1) ** 2, 0.0))


def crowd(rows: Integers) -> Floats:
    """n jobs are n times as slow."""
    present = rows >= 0
    return np.where(present, present.sum(1, keepdims=True) - 1.0, 0.0)


def test_a_set_is_at_least_as_slow_as_its_slowest_part() -> None:
    rows = np.array([[0, 1, 2, 3], [3, 2, 1, -1], [3, 0, -1, -1], [2, -1, -1, -1]])
    bounded = never_faster_with_more(crowded, rows)
    np.testing.assert_array_equal(bounded[2:], crowded(rows)[2:])
    # Of 4, 3 and 2 the quickest partner of each pair is the one with the largest number.
    assert bounded[1].tolist() == [7.0, 7.0, 6.0, 0.0]
    assert bounded[0].tolist() == [5.0, 6.0, 7.0, 7.0]


def test_one_more_neighbour_takes_no_more_than_its_share_of_the_time() -> None:
    left = np.array([0.0, 0.0, 0.5, 0.99, 0.9])
    rows = np.array([[0, 1, 3, 4], [1, 3, 0, -1], [0, 1, 2, -1], [0, 3, -1, -1], [2, -1, -1, -1]])
    bounded = 1.0 + never_faster_with_more(crowd, rows, left=left)
    np.testing.assert_allclose(bounded[0, :2], 2.0 / (0.99 * 0.9))
    # Those that take little may be slowed by the others, which were not measured.
    np.testing.assert_allclose(bounded[0, 2:], [3.0 / 0.9, 3.0 / 0.99])
    np.testing.assert_allclose(bounded[1], [2.0 / 0.99, 3.0, 2.0 / 0.99, 1.0])
    np.testing.assert_allclose(bounded[2:], 1.0 + crowd(rows)[2:])


def test_parts_of_sets_are_answered_as_if_they_were_asked_about() -> None:
    left = np.array([0.0, 0.0, 0.5, 0.99, 0.9])
    rows = np.array([[0, 1, 3, 4], [1, 3, 0, -1], [4, 2, 1, 0], [0, 3, -1, -1], [2, -1, -1, -1]])
    found = 0
    for places, excess in excess_of_parts(list(parts_by_size(crowded, rows, left)), rows):
        for s, own in enumerate(rows):
            for columns, answer in zip(places, excess[s], strict=True):
                part = own[columns]
                if (part < 0).any() or len(part) == (own >= 0).sum():
                    assert np.isinf(answer).all()
                    continue
                found += 1
                expected = never_faster_with_more(crowded, part[None], left=left)[0]
                np.testing.assert_allclose(answer, expected)
    assert found == 2 * (6 + 4) + 3


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
@pytest.mark.parametrize("device", ["v100", "h100"])
def test_an_idle_job_changes_no_answer_about_others(predictor: Predictor, device: str, sharing: str) -> None:
    # Less busy than any job that the predictor has learned from.
    idle = Workload.parse(f"{JOBS[0].model}:step_time_s=0.01,utilization_ratio=0.005")
    for members in [members for size in (1, 2, 3) for members in combinations(JOBS, size)]:
        without, beside = (
            predictor.predict_arrays([ColocationSet(device, some, sharing)]).slowdown[0, : len(members)]
            for some in (members, (*members, idle))
        )
        assert (beside <= without / 0.995 + 1e-6).all()
        assert (beside >= without - 1e-6).all()


def test_large_sets_are_bounded_by_pairs_and_triples() -> None:
    rows = np.arange(10)[None]
    asked: list[int] = []

    def answer(part: Integers) -> Floats:
        asked.append(part.shape[1])
        return crowded(part)

    bounded = never_faster_with_more(answer, rows)
    assert bounded.tolist() == [[*np.arange(11.0, 20.0), 19.0]]
    assert asked == [10, 2, 3]


def test_bounds_of_a_set_do_not_depend_on_larger_ones_in_the_call() -> None:
    rows = np.full((3, 10), -1)
    rows[0], rows[1, :6], rows[2, :2] = np.arange(10), np.arange(6), [3, 1]
    left = np.linspace(0.9, 0.99, 10)
    together = never_faster_with_more(crowd, rows, left=left)
    small = never_faster_with_more(crowd, rows[1:, :6], left=left)
    assert small[0].max() < 5.0, "bounded by what is left"
    np.testing.assert_array_equal(together[1:, :6], small)
    np.testing.assert_array_equal(never_faster_with_more(crowd, rows[1:], left=left)[:, :6], small)
    np.testing.assert_array_equal(together[:1], never_faster_with_more(crowd, rows[:1]))


def test_jobs_on_a_core_get_at_most_all_of_its_time() -> None:
    busy = np.array([[1.0, 1.0, 1.0], [1.0, 0.5, 0.0], [0.3, 0.2, 0.0], [1.0, 1.0, 1.0]])
    excess = np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.1, 0.2, 0.0], [2.0, 2.5, 4.0]])
    bounded = at_most_all_the_time(excess, busy)
    np.testing.assert_allclose(bounded[:2], [[2.0, 2.0, 2.0], [0.5, 0.5, 0.0]])
    np.testing.assert_allclose(bounded[2:], excess[2:])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_predicted_speeds_on_a_core_add_up_to_at_most_one(predictor: Predictor, count: int) -> None:
    alone, together = (predictor.predict(ColocationSet("cpu", JOBS[:1] * n)) for n in (1, count))
    busy = alone.members[0].utilization_ratio.value
    assert busy > 0.9
    assert sum(m.throughput_ratio.value for m in together.members) * busy <= 1.0 + 1e-6


def test_three_jobs_use_no_more_time_than_the_best_pair() -> None:
    busy = np.array([0.9, 0.8, 0.6, 0.1])

    def of_pairs(pairs: Integers) -> Floats:
        return np.asarray(np.full(pairs.shape, 0.4))  # the best pair uses (0.9 + 0.8) / 1.4

    def answer(rows: Integers) -> Floats:
        return np.where(rows >= 0, 0.5, 0.0)

    rows = np.array([[0, 1, 2], [3, 3, 3], [0, 1, -1]])
    excess = no_busier_than_pairs(answer, of_pairs, rows, busy)
    assert (busy[:3] / (1 + excess[0])).sum() == pytest.approx(1.7 / 1.4)
    np.testing.assert_array_equal(excess[1:], answer(rows)[1:])


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
@pytest.mark.parametrize("device", ["v100", "h100"])
def test_one_more_neighbour_makes_no_job_faster(predictor: Predictor, device: str, sharing: str) -> None:
    for size in (3, 4):
        for members in combinations(JOBS, size):
            whole = predictor.predict_arrays([ColocationSet(device, members, sharing)]).slowdown[0]
            for gone in range(size):
                rest = [k for k in range(size) if k != gone]
                fewer = ColocationSet(device, tuple(members[k] for k in rest), sharing)
                less = predictor.predict_arrays([fewer]).slowdown[0]
                assert (whole[rest] >= less * (1 - 1e-6)).all()


def test_unmeasured_mps_is_no_slower_than_time_slicing(predictor: Predictor) -> None:
    fitted = predictor.fitted_
    pairs = list(combinations(JOBS, 2))

    def excess(coverage: Coverage, device: str, sharing: str) -> Floats:
        table = JobTable(fitted.model, fitted.heads, coverage)
        rows = [table.rows([(w, device, sharing) for w in pair]) for pair in pairs]
        return table.excess(np.array(rows), sharing)

    on_v100 = Coverage(devices=("v100",), sharing=("mps on v100", "time-slice on v100"))
    turns, at_once = excess(on_v100, "v100", "time-slice"), excess(on_v100, "v100", "mps")
    elsewhere = excess(on_v100, "p100", "mps")
    free = excess(replace(on_v100, sharing=("mps on p100", "mps on v100")), "p100", "mps")
    time_sliced = excess(on_v100, "p100", "time-slice")
    assert not np.allclose(turns, at_once, rtol=1e-3)
    np.testing.assert_allclose(elsewhere, np.minimum(free, time_sliced), rtol=1e-5, atol=1e-7)
    # What was not recorded bounds nothing.
    np.testing.assert_allclose(excess(Coverage(), "p100", "mps"), free, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_unmeasured_modes_use_processor_sharing(predictor: Predictor, sharing: str) -> None:
    fitted = predictor.fitted_
    serving = [replace(w, mode="inference") for w in JOBS]

    def asked(*jobs: Workload, modes: tuple[str, ...] = ("training",)) -> tuple[Floats, Floats]:
        table = JobTable(fitted.model, fitted.heads, Coverage(devices=("v100",), modes=modes))
        rows = np.array([table.rows([(w, "p100", sharing) for w in jobs])])
        return table.excess(rows, sharing)[0], table.utilization[rows[0]]

    excess, busy = asked(*serving)
    np.testing.assert_allclose(excess, max(busy.sum() - 1.0, 0.0))
    assert asked(serving[0])[0].tolist() == [0.0]
    # A neighbour of a mode that was measured, or coverage of this one, leaves the answer to the networks.
    for jobs, modes in (((serving[0], JOBS[1]), ("training",)), (serving[:2], ("inference", "training"))):
        by_network, busy = asked(*jobs, modes=modes)
        assert not np.allclose(by_network, max(busy.sum() - 1.0, 0.0), rtol=1e-3)


def test_processor_sharing_is_reported(predictor: Predictor) -> None:
    serving = tuple(replace(w, mode="inference") for w in JOBS[:2])
    for jobs, said in ((serving, True), ((serving[0], JOBS[1]), False), (serving[:1], False)):
        reasons = predictor.predict(ColocationSet("v100", jobs)).reasons
        assert any("processor sharing" in reason for reason in reasons) == said
