from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from datasets.tables import make_table
from models.baselines import AdditivePredictor, ConstantPredictor, TreePredictor
from models.baselines.features import FeatureTable
from profiling.errors import InputError
from tests.datasets.test_tables import example

NAMES = ("a-net", "b-net", "c-net", "d-net")
DEMAND = {"a-net": 0.2, "b-net": 0.5, "c-net": 0.8, "d-net": 0.9}


def world(sets: int = 120, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sets whose members share the device in proportion to their demand."""
    generator = np.random.default_rng(seed)
    rows, solo = [], []
    for number in range(sets):
        members = generator.choice(NAMES, size=3 if number % 5 == 0 else 2)
        demand = sum(DEMAND[name] for name in members)
        for position, name in enumerate(members):
            rows.append(
                example(
                    "colocation",
                    set_id=f"s{number}",
                    member=position,
                    workload=f"{name}:batch_size=8",
                    architecture=name,
                    batch_size=8,
                    throughput_ratio=min(1.0, 1 / demand),
                    set_memory_bytes=demand * 1e9,
                    set_utilization_ratio=min(1.0, demand),
                )
            )
    for name in NAMES:
        solo.append(
            example(
                "solo",
                workload=f"{name}:batch_size=8",
                architecture=name,
                batch_size=8,
                step_time_s=DEMAND[name] / 10,
            )
            | {"utilization_ratio": DEMAND[name], "memory_bytes": DEMAND[name] * 1e9}
        )
    return make_table("colocation", rows), make_table("solo", solo)


OF_SETS = ("throughput_ratio", "set_memory_bytes", "set_utilization_ratio", "solo_step_time_s")
TRAIN, SOLO = world()
TEST, _ = world(seed=1)


@pytest.mark.parametrize("target", ["throughput_ratio", "set_memory_bytes", "set_utilization_ratio"])
def test_additive_is_exact_where_demand_adds_up(target: str) -> None:
    train, test = Bundle(target, TRAIN, SOLO), Bundle(target, TEST, SOLO)
    predicted = AdditivePredictor().fit(train).predict(test.without_targets())
    assert predicted == pytest.approx(test.y)


def test_additive_needs_a_solo_run() -> None:
    test = Bundle("throughput_ratio", TEST, SOLO[SOLO["architecture"] != "a-net"])
    unknown = (
        TEST.groupby("set_id")["architecture"]
        .transform(lambda names: "a-net" in set(names))
        .to_numpy(dtype=bool)
    )
    predicted = AdditivePredictor().fit(test).predict(test)
    assert np.isnan(predicted[unknown]).all()
    assert np.isfinite(predicted[~unknown]).all()


@pytest.mark.parametrize("target", OF_SETS)
@pytest.mark.parametrize("solo", [False, True])
def test_trees_beat_the_constant_and_are_deterministic(target: str, solo: bool) -> None:
    train, test = Bundle(target, TRAIN, SOLO), Bundle(target, TEST, SOLO)
    if target == "solo_step_time_s":
        train = test = Bundle(target, SOLO, SOLO.iloc[:0])
    y = test.y[test.points]

    def error(predictor: TreePredictor | ConstantPredictor) -> float:
        predicted = predictor.fit(train, seed=3).predict(test.without_targets())
        assert len(predicted) == len(test.rows)
        return float(np.abs(predicted[test.points] - y).mean())

    assert error(TreePredictor(solo, trees=30)) == error(TreePredictor(solo, trees=30))
    assert error(TreePredictor(solo, trees=30)) < 0.6 * error(ConstantPredictor())


def test_features_do_not_depend_on_co_located_measurements() -> None:
    bundle = Bundle("throughput_ratio", TRAIN, SOLO)
    features = FeatureTable(solo=True).fit(bundle)
    np.testing.assert_array_equal(features.transform(bundle), features.transform(bundle.without_targets()))


def test_bounds_are_not_training_points() -> None:
    table = TRAIN.assign(
        censored=TRAIN["architecture"] == "a-net", throughput_ratio=TRAIN["throughput_ratio"]
    )
    changed = table.assign(throughput_ratio=table["throughput_ratio"].where(~table["censored"], 0.001))
    for make in (ConstantPredictor, lambda: TreePredictor(trees=10)):
        first, second = (
            make().fit(Bundle("throughput_ratio", t, SOLO)).predict(Bundle("throughput_ratio", TEST, SOLO))
            for t in (table, changed)
        )
        np.testing.assert_array_equal(first, second)


def test_empty_training_data() -> None:
    empty = Bundle("throughput_ratio", TRAIN.assign(is_target=False), SOLO)
    for predictor in (ConstantPredictor(), TreePredictor()):
        with pytest.raises(InputError, match="nothing to learn"):
            predictor.fit(empty)
    with pytest.raises(InputError, match="only predicts sets"):
        AdditivePredictor().fit(Bundle("solo_step_time_s", SOLO, SOLO))


def test_unseen_names_and_devices_are_predicted() -> None:
    fitted = TreePredictor(trees=10).fit(Bundle("throughput_ratio", TRAIN, SOLO))
    strange = TEST.assign(architecture="x-net", device="no-such-gpu")
    assert np.isfinite(fitted.predict(Bundle("throughput_ratio", strange, SOLO))).all()
