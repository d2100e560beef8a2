from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from models.colocation_network import NetworkConfig
from predictor.load import load_predictor
from predictor.predictor import Predictor
from predictor.types import Prediction, Quantity
from profiling.devices import get_device
from profiling.errors import InputError, UnavailableError, UnknownNameError
from profiling.workload import ColocationSet, SoloProfile, Workload
from tests.predictor.synthetic import graph_source

JOBS = tuple(Workload(name, 32) for name in ("alpha", "beta", "gamma", "delta"))
MEASURED = Workload.parse(
    "alpha:batch_size=32,step_time_s=0.02,utilization_ratio=0.8,memory_bytes=2000000000"
)
QUANTITIES = (
    "solo_step_time_s",
    "step_time_s",
    "slowdown",
    "throughput_ratio",
    "memory_bytes",
    "utilization_ratio",
)


def ordered(q: dict[str, float]) -> bool:
    return set(q) == {"value", "lower", "upper"} and q["lower"] <= q["value"] <= q["upper"]


def test_json_has_the_documented_shape(predictor: Predictor) -> None:
    body = predictor.predict(ColocationSet("v100", JOBS[:2])).to_json()
    assert set(body) == {
        "device",
        "sharing",
        "model_version",
        "members",
        "total_memory_bytes",
        "total_utilization_ratio",
        "fits",
        "reasons",
        "never_measured",
    }
    assert (body["device"], body["sharing"], body["model_version"]) == ("v100", "time-slice", "test")
    assert [m["job"] for m in body["members"]] == [str(j) for j in JOBS[:2]]
    for member in body["members"]:
        assert set(member) == {"job", *QUANTITIES, "in_domain"}
        assert all(ordered(member[name]) for name in QUANTITIES)
        assert isinstance(member["in_domain"], bool)
    assert ordered(body["total_memory_bytes"])
    assert ordered(body["total_utilization_ratio"])
    assert isinstance(body["fits"], bool)
    assert all(isinstance(r, str) for r in body["reasons"])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("sharing", ["time-slice", "mps", "mig"])
def test_sets_of_one_to_four(predictor: Predictor, count: int, sharing: str) -> None:
    device = "a100" if sharing == "mig" else "v100"
    answer = predictor.predict(ColocationSet(device, JOBS[:count], sharing))
    assert len(answer.members) == count
    for member in answer.members:
        assert member.slowdown.lower >= 1
        ratio, slowdown = member.throughput_ratio, member.slowdown
        assert (ratio.value, ratio.lower, ratio.upper) == pytest.approx(
            (1 / slowdown.value, 1 / slowdown.upper, 1 / slowdown.lower)
        )
        assert member.step_time_s.value == pytest.approx(
            member.solo_step_time_s.value * member.slowdown.value
        )
        assert 0 <= member.utilization_ratio.lower <= member.utilization_ratio.upper <= 1
        if count == 1:
            assert member.slowdown == Quantity(1.0, 1.0, 1.0)


def test_a_network_that_could_not_answer_is_refused_before_it_is_fitted() -> None:
    with pytest.raises(InputError, match="ablation only"):
        Predictor(network=NetworkConfig(use_device=False)).fit(pd.DataFrame(), pd.DataFrame())


def test_order_of_members_does_not_change_predictions(predictor: Predictor) -> None:
    forth = predictor.predict(ColocationSet("v100", JOBS[:3])).members
    back = predictor.predict(ColocationSet("v100", JOBS[2::-1])).members[::-1]
    for member, other in zip(forth, back, strict=True):
        for name in QUANTITIES:
            assert getattr(member, name).value == pytest.approx(getattr(other, name).value, rel=1e-5)


def test_arrays_equal_predictions(predictor: Predictor) -> None:
    sets = [
        ColocationSet("v100", JOBS[:3]),
        ColocationSet("p100", JOBS[1:2], "mps"),
        ColocationSet("a100", (MEASURED, JOBS[3]), "mig"),
    ]
    arrays, answers = predictor.predict_arrays(sets), predictor.predict_many(sets)
    assert arrays.mask.tolist() == [[True] * 3, [True, False, False], [True, True, False]]
    for k, answer in enumerate(answers):
        for i, member in enumerate(answer.members):
            for name in ("solo_step_time_s", "step_time_s", "slowdown", "memory_bytes", "utilization_ratio"):
                assert getattr(arrays, name)[k, i] == pytest.approx(getattr(member, name).value, rel=1e-5)
        assert arrays.memory_upper_bytes[k] == pytest.approx(answer.total_memory_bytes.upper)
        assert bool(arrays.fits[k]) is answer.fits
    for name, empty in (("slowdown", 1.0), ("step_time_s", 1.0), ("memory_bytes", 0.0)):
        assert (getattr(arrays, name)[~arrays.mask] == empty).all()
    one_by_one = np.concatenate([predictor.predict_arrays([s]).slowdown[0] for s in sets])
    np.testing.assert_allclose(one_by_one, arrays.slowdown[arrays.mask], rtol=1e-5)


def test_modes_are_answered_in_a_fixed_order(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def excess(rows: np.ndarray, sharing: str) -> np.ndarray:
        asked.append(sharing)
        return np.zeros(rows.shape)

    monkeypatch.setattr(predictor, "_excess", excess)
    predictor.predict_arrays([ColocationSet("a100", JOBS[:2], mode) for mode in ("time-slice", "mps", "mig")])
    assert asked == ["mig", "mps", "time-slice"]


@pytest.mark.parametrize(
    ("device", "count", "words"),
    [
        ("v100", 1, "v100 cannot be partitioned into MIG slices"),
        ("v100", 2, "v100 cannot be partitioned into MIG slices"),
        ("a100:mig=3g", 2, "cannot be partitioned"),
        ("a100", 9, "a100 has too few MIG slices"),
    ],
)
def test_slices_that_a_device_lacks_are_refused(
    predictor: Predictor, device: str, count: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        predictor.predict(ColocationSet(device, JOBS[:1] * count, "mig"))


def test_time_sliced_jobs_use_at_most_all_of_the_time(predictor: Predictor) -> None:
    busy = tuple(replace(job, solo=SoloProfile(0.01, utilization_ratio=0.99)) for job in JOBS)
    for count in (1, 2, 4):
        turns = predictor.predict_arrays([ColocationSet("h100", busy[:count], "time-slice")])
        assert turns.utilization_ratio.sum() <= 1 + 1e-9
        mixed = predictor.predict_arrays(
            [ColocationSet("h100", busy[:count], "time-slice"), ColocationSet("h100", busy[:count], "mps")]
        )
        np.testing.assert_allclose(mixed.utilization_ratio[0], turns.utilization_ratio[0])


def test_no_sets(predictor: Predictor) -> None:
    assert predictor.predict_many([]) == []
    assert predictor.predict_arrays([]).slowdown.shape[0] == 0


def test_measured_values_are_used(predictor: Predictor) -> None:
    alone = predictor.predict(ColocationSet("v100", (MEASURED,))).members[0]
    assert alone.solo_step_time_s.value == 0.02
    assert alone.memory_bytes.value == 2e9
    assert alone.utilization_ratio.value == pytest.approx(0.8)
    unmeasured = predictor.predict(ColocationSet("v100", (MEASURED.without_solo(),))).members[0]

    def width(q: Quantity) -> float:
        return q.upper / q.lower

    assert width(alone.solo_step_time_s) < width(unmeasured.solo_step_time_s)
    assert width(alone.memory_bytes) < width(unmeasured.memory_bytes)


def test_memory_covers_the_state(predictor: Predictor) -> None:
    for job in JOBS:
        state = graph_source(job).state_bytes
        memory = predictor.predict(ColocationSet("v100", (job,))).members[0].memory_bytes
        assert memory.lower >= state


def test_a_set_that_does_not_fit_is_reported(predictor: Predictor) -> None:
    large = Workload.parse("alpha:batch_size=32,memory_bytes=9000000000")
    answer = predictor.predict(ColocationSet("v100", (large, large)))
    assert not answer.fits
    assert predictor.predict(ColocationSet("v100", (MEASURED, MEASURED))).fits
    assert answer.reasons[0].startswith("does not fit: at most")
    assert not predictor.predict_arrays([ColocationSet("v100", (large, large))]).fits[0]


@pytest.mark.parametrize(
    ("share", "fits"), [(0.9, True), (0.96, True), (1.0, True), (1.001, False), (1.2, False)]
)
def test_a_lone_job_fits_if_its_measured_memory_does(predictor: Predictor, share: float, fits: bool) -> None:
    room = get_device("v100").memory_bytes
    large = replace(JOBS[0], solo=SoloProfile(memory_bytes=share * room))
    sets = [ColocationSet("v100", (large,)), ColocationSet("v100", (large, JOBS[1]))]
    for asked in (sets[:1], sets):  # with an absent neighbour too
        arrays, answer = predictor.predict_arrays(asked), predictor.predict(sets[0])
        assert bool(arrays.fits[0]) is answer.fits is fits
        assert arrays.memory_upper_bytes[0] == answer.total_memory_bytes.upper
        assert arrays.memory_upper_bytes[0] >= share * room
        assert (answer.members[0].memory_bytes.upper <= room) is fits
    beside = predictor.predict_arrays(sets)
    assert not beside.fits[1]
    assert beside.memory_upper_bytes[1] > 1.02 * beside.memory_bytes[1].sum(), (
        "the bound of several is as before"
    )


def test_a_frozen_prefix_is_never_slower(predictor: Predictor) -> None:
    steps = [
        predictor.predict(ColocationSet("v100", (replace(JOBS[2], frozen_prefix=k),))).members[0]
        for k in range(6)
    ]
    for before, after in itertools.pairwise(steps):
        assert after.step_time_s.value <= before.step_time_s.value
        assert after.memory_bytes.value <= before.memory_bytes.value
    assert steps[-1].step_time_s.value < steps[0].step_time_s.value
    assert steps[-1].memory_bytes.value < steps[0].memory_bytes.value


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (ColocationSet("abacus", JOBS[:1]), "abacus"),
        (ColocationSet("v100", (Workload("omega"),)), "omega"),
    ],
)
def test_unknown_names(predictor: Predictor, asked: ColocationSet, word: str) -> None:
    for ask in (predictor.predict, lambda s: predictor.predict_arrays([s])):
        with pytest.raises(UnknownNameError, match=word):
            ask(asked)
    # The table is as it was: the next question is answered.
    assert isinstance(predictor.predict(ColocationSet("v100", JOBS[:1])), Prediction)


def test_too_long_a_prefix(predictor: Predictor) -> None:
    with pytest.raises(InputError, match="frozen_prefix"):
        predictor.predict(ColocationSet("v100", (Workload("alpha", frozen_prefix=9),)))


def test_unfitted() -> None:
    with pytest.raises(UnavailableError, match="not been fitted"):
        Predictor(graph_source=graph_source).predict(ColocationSet("v100", JOBS[:1]))


def test_manifest_lists_training_sets(
    predictor: Predictor, measured: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    manifest = predictor.fitted_.manifest
    assert set(manifest.set_ids) == set(measured[0].set_id)
    assert (manifest.sources, manifest.licences) == (("synthetic",), ("Apache-2.0",))
    assert manifest.architectures == ("alpha", "beta", "delta", "gamma")


def test_no_sets_have_no_answers() -> None:
    """Nor before any job was asked about."""
    assert load_predictor().predict_arrays([]).step_time_s.shape == (0, 1)
