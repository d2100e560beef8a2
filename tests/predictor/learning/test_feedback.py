from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.config import TrainingConfig
from predictor.examples.observations import (
    Observation,
    default_store,
    keep,
    read_observations,
    stored,
    training_tables,
)
from predictor.learning.feedback import (
    FARTHEST,
    SHRINKAGE,
    Corrections,
    Drift,
    corrected,
    corrected_arrays,
    learn,
    learn_ratios,
)
from predictor.predictor import Predictor
from profiling.errors import ConflictError, InputError
from profiling.workload import ColocationSet, Workload
from tests.predictor.synthetic import NETWORK, graph_source

BETA = "beta:batch_size=32,step_time_s=0.03"
PAIR = ColocationSet("v100", (Workload("alpha", 32), Workload.parse(BETA)))


def seen(predictor: Predictor, member: int, factor: float, times: int = 1) -> list[Observation]:
    step = predictor.predict(PAIR).members[member].step_time_s.value
    return [Observation(PAIR, member, step * factor)] * times


def test_more_observations_move_the_answer_further(predictor: Predictor) -> None:
    before = predictor.predict(PAIR)
    ratios = []
    for times in (1, 5, 500):
        corrections, _ = learn(predictor, seen(predictor, 0, 1.5, times))
        after = corrected(before, corrections)
        ratios.append(after.members[0].step_time_s.value / before.members[0].step_time_s.value)
        assert after.members[1] == before.members[1]
    assert ratios == pytest.approx([1.5 ** (n / (n + SHRINKAGE)) for n in (1, 5, 500)], rel=1e-4)


def test_what_was_measured_alone_keeps_its_solo_time(predictor: Predictor) -> None:
    before = predictor.predict(PAIR)
    both = [*seen(predictor, 0, 1.3, 9), *seen(predictor, 1, 1.3, 9)]
    first, second = corrected(before, learn(predictor, both)[0]).members
    assert first.slowdown == before.members[0].slowdown
    assert first.solo_step_time_s.value > before.members[0].solo_step_time_s.value
    assert second.solo_step_time_s == before.members[1].solo_step_time_s
    assert second.slowdown.value > before.members[1].slowdown.value
    for member in (first, second):
        assert member.step_time_s.value == pytest.approx(
            member.solo_step_time_s.value * member.slowdown.value
        )


def test_slowdown_stays_at_least_one(predictor: Predictor) -> None:
    corrections, _ = learn(predictor, seen(predictor, 1, 0.1, 100))
    member = corrected(predictor.predict(PAIR), corrections).members[1]
    assert member.slowdown.value == 1.0
    assert member.step_time_s.value == pytest.approx(0.03)


def test_arrays_are_corrected_alike(predictor: Predictor) -> None:
    sets = [PAIR, ColocationSet("v100", (Workload("gamma", 32),))]
    corrections, _ = learn(predictor, [*seen(predictor, 0, 1.4, 3), *seen(predictor, 1, 0.8, 3)])
    arrays = corrected_arrays(predictor.predict_arrays(sets), sets, corrections)
    for k, one in enumerate(sets):
        for i, member in enumerate(corrected(predictor.predict(one), corrections).members):
            for name in ("solo_step_time_s", "slowdown", "step_time_s"):
                assert getattr(arrays, name)[k, i] == pytest.approx(getattr(member, name).value, rel=1e-5)


def test_drift_falls_and_nothing_is_judged_by_itself(predictor: Predictor) -> None:
    corrections, drift = learn(predictor, seen(predictor, 0, 1.5, 21))
    assert (drift.count, drift.before) == (21, pytest.approx(math.log(1.5), rel=1e-4))
    assert drift.after == pytest.approx(math.log(1.5) * (1 - 10 / 15), rel=1e-3)
    assert learn(predictor, seen(predictor, 0, 1.5))[1].after == pytest.approx(math.log(1.5), rel=1e-4)
    assert learn(predictor, []) == (Corrections(), Drift(0, 0.0, 0.0))
    (entry,) = corrections.to_json()
    assert (entry["device"], entry["job"], entry["count"]) == ("v100", "alpha:batch_size=32", 21)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=30))
def test_one_wild_observation_is_bounded(ratios: list[float]) -> None:
    corrections, _ = learn_ratios(("v100", Workload("alpha"), r) for r in ratios)
    assert abs(corrections.log_factor("v100", Workload("alpha"))) <= FARTHEST
    assert corrections.log_factor("p100", Workload("alpha")) == 0
    assert corrections.log_factor("v100", Workload("alpha", 8)) == 0


CSV = f"""device,sharing,jobs,job,step_time_s
v100,time-slice,alpha:batch_size=32; {BETA},alpha:batch_size=32,0.02
v100,,"gamma",,0.5
"""


def test_files(tmp_path: Path) -> None:
    csv, js = tmp_path / "seen.csv", tmp_path / "seen.json"
    csv.write_text(CSV.replace(f"32; {BETA},", f'32; {BETA}",').replace("slice,alpha", 'slice,"alpha'))
    first, second = read_observations(csv)
    assert first == Observation(PAIR, 0, 0.02)
    assert second == Observation(ColocationSet("v100", (Workload("gamma"),)), 0, 0.5)
    for body in (
        [first.to_mapping()],
        {"items": [{**first.to_mapping(), "id": 7, "error_ratio": 0.1}]},
        {
            "observations": [
                {
                    "of": {"device": "v100", "jobs": ["alpha:batch_size=32", BETA]},
                    "member": 0,
                    "step_time_s": 0.02,
                }
            ]
        },
    ):
        js.write_text(json.dumps(body))
        assert read_observations(js) == [first]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("device,jobs,job,step_time_s\nv100,alpha,alpha,-1\n", "row 1"),
        ("device,jobs,job,step_time_s\nv100,alpha,alpha,0.1\nv100,alpha,beta,0.1\n", "row 2"),
        ("device,jobs,job\nv100,alpha,alpha\n", "step_time_s"),
        ("device,jobs,job,step_time_s\nv100,alpha;beta,,0.1\n", "job"),
        ("device,jobs,job,step_time_s\nv100,alpha:colour=red,,0.1\n", "colour"),
        ("device,jobs,job,step_time_s\n", "no observations"),
    ],
)
def test_bad_rows(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "seen.csv").write_text(text)
    with pytest.raises(InputError, match=word):
        read_observations(tmp_path / "seen.csv")


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_observations(tmp_path / "missing.csv")
    for body in ("{}", "[1]", "[", '{"observations": []}'):
        (tmp_path / "seen.json").write_text(body)
        with pytest.raises(InputError):
            read_observations(tmp_path / "seen.json")


def test_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, one = tmp_path / "deep" / "feedback.json", Observation(PAIR, 1, 0.04)
    assert stored(store) == []
    assert keep(store, [one]) == [one]
    assert keep(store, [one, one]) == [one] * 3 == stored(store)
    with pytest.raises(ConflictError, match="before"):
        keep(store, [one])
    assert len(stored(store)) == 3
    for body in ("[]", '{"format": "cotenant-feedback", "version": 2}', "{"):
        store.write_text(body)
        with pytest.raises(InputError):
            stored(store)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store() == tmp_path / "cotenant" / "feedback.json"


def test_rows_for_the_next_training(measured: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    alone = ColocationSet("v100", (Workload("alpha", 32),))
    other = ColocationSet("p100", (Workload("gamma"), Workload("delta")))
    colocation, solo = training_tables(
        [
            Observation(PAIR, 1, 0.04),
            Observation(PAIR, 1, 0.06),
            Observation(PAIR, 1, 0.05),
            Observation(PAIR, 0, 0.03),
            Observation(alone, 0, 0.02),
            Observation(other, 0, 9.0),
        ]
    )
    assert colocation.architecture.tolist() == ["alpha", "beta"]
    assert colocation.throughput_ratio.tolist() == pytest.approx([0.02 / 0.03, 0.03 / 0.05])
    assert colocation.is_target.all()
    assert dict(zip(solo.architecture, solo.step_time_s, strict=True)) == {"alpha": 0.02, "beta": 0.03}
    # They are rows like any other.
    training = TrainingConfig(ensemble=1, epochs=1, encoder_steps=1)
    both = [pd.concat([a, b], ignore_index=True) for a, b in zip(measured, (colocation, solo), strict=True)]
    few = [t[t.device == "v100"] for t in both]
    fitted = Predictor(NETWORK, training, graph_source).fit(*few)
    assert "feedback" in fitted.fitted_.manifest.sources
    partly, _ = training_tables([Observation(PAIR, 1, 0.04)])
    assert partly.is_target.tolist() == [False, True]
    assert partly.throughput_ratio[1] == pytest.approx(0.75)
