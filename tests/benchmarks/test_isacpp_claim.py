"""What beliefs are queried for by the benchmark of the placement claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.isacpp_claim import ASKED, EXPLORING, SIMPLE, markdown, report, run
from benchmarks.left_out import LeftOut, without_model, without_pair
from benchmarks.pair_traces import believed, measured_workloads
from predictor.types import PredictionArrays
from profiling.workload import ColocationSet, Workload
from scheduling.beliefs.table import Solo, TablePredictor

JOBS = tuple(Workload(f"model-{k}") for k in range(4))
SOLO = {("v100", j): Solo(0.1 * (k + 1), 1e9, 0.5) for k, j in enumerate(JOBS)}
# model-3 was measured alone only, and one pair is missing
TABLE = TablePredictor(
    SOLO, {("v100", (JOBS[0], JOBS[1])): (0.8, 0.6), ("v100", (JOBS[1], JOBS[2])): (0.7, 0.9)}
)


class Says:
    """A belief with one slowdown for all sets; those with `refused` do not fit."""

    def __init__(self, slowdown: float, refused: str = "") -> None:
        self.slowdown, self.refused = slowdown, refused

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        assert all(w.solo.step_time_s is not None for s in sets for w in s.workloads)
        answer = TABLE.predict_arrays(sets)
        slow = np.full(answer.mask.shape, self.slowdown)
        fits = np.array([all(w.model != self.refused for w in s.workloads) for s in sets])
        return replace(answer, slowdown=slow, step_time_s=answer.solo_step_time_s * slow, fits=fits)


def test_a_belief_is_queried_for_measured_pairs_only() -> None:
    assert [w.model for w in measured_workloads(TABLE, "v100")] == ["model-0", "model-1", "model-2"]
    table = believed(Says(1.25, refused="model-2"), TABLE, "v100")
    pairs = [(JOBS[0], JOBS[1]), (JOBS[1], JOBS[2]), (JOBS[0], JOBS[2])]
    answer = table.predict_arrays([ColocationSet("v100", p) for p in pairs])
    assert answer.fits.tolist() == [True, False, False]
    assert answer.slowdown[0] == pytest.approx([1.25, 1.25])


def test_a_true_belief_achieves_all_of_the_oracles_gain() -> None:
    truth = believed(TABLE, TABLE, "v100")
    names = (*ASKED, EXPLORING)
    results = [run(TABLE, "v100", truth, 15, 3, seed, names) for seed in range(2)]
    figures = report(results)
    assert all(r["oracle"]["mean_jct_s"] == r["predictor"]["mean_jct_s"] for r in results)
    for figure, body in figures.items():
        simple = [body["mean"][name] for name in SIMPLE]
        assert body["mean"][body["best_simple"]] == min(simple), figure
        assert body["gain_percent"]["predictor"] == body["gain_percent"]["oracle"]
        part = body["over_constant_percent"]["predictor"]
        assert part is None or part == pytest.approx(100.0)
    assert set(markdown({"trace": figures}).splitlines()[2].split("|")[1:3]) == {" trace ", " mean_jct "}


def test_gains_are_paired_by_seed_and_insignificant_gains_are_no_denominator() -> None:
    results = []
    for seed, (oracle, constant) in enumerate(((90.0, 100.0), (110.0, 100.0))):
        names = dict.fromkeys((*SIMPLE, "horus", "lucid"), 200.0 + 10 * seed)
        beliefs = {name + o: 150.0 for name in ASKED for o in ("", "-makespan")}
        own = {"oracle": oracle, "constant": constant}
        results.append(
            {
                n: dict.fromkeys(("mean_jct_s", "p99_jct_s", "makespan_s"), v)
                for n, v in (names | beliefs | own).items()
            }
        )
    body = report(results)["mean_jct_s"]
    assert body["best_simple"] == "exclusive"
    assert body["gain_percent"]["oracle"] == pytest.approx(100 * (1 - 100 / 205))
    # Of that ratio of means: the values less 100 / 205 times the rule's are -7.56 and 7.56, so half their range is it.
    assert body["gain_standard_error"]["oracle"] == pytest.approx(100 * (110 - 100 / 205 * 210) / 205)
    assert body["over_constant_percent"]["predictor"] is None


def test_every_set_is_predicted_without_its_pair() -> None:
    a, b = (replace(w) for w in list(measured_workloads(TABLE, "v100"))[:2])
    left_out = LeftOut(
        [Says(1.1), Says(1.9)], without_pair({("model-0", "model-1"): 1, ("model-1", "model-2"): 0})
    )
    answer = left_out.predict_arrays([ColocationSet("v100", (b, a)), ColocationSet("v100", (a, a))])
    assert answer.slowdown[:, 0] == pytest.approx([1.9, 1.1])


def test_each_member_is_predicted_without_its_model() -> None:
    a, b = (w for w in measured_workloads(TABLE, "v100") if w.model in ("model-0", "model-1"))
    refused = Says(1.9, refused="model-0")
    new = LeftOut([Says(1.1), refused], without_model(["model-0", "model-1"]))
    answer = new.predict_arrays([ColocationSet("v100", (b, a)), ColocationSet("v100", (a,))])
    assert answer.slowdown[0] == pytest.approx([1.9, 1.1])
    assert answer.slowdown[1, 0] == pytest.approx(1.1)
    assert answer.fits.tolist() == [False, True]
