from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.colocation_network import member_width
from predictor.examples.examples import examples_of, padded_rows, places_of, settings_of
from predictor.predictor import Predictor
from profiling.errors import InputError
from profiling.workload import SHARING_MODES
from tests.predictor.synthetic import NETWORK

Tables = tuple[pd.DataFrame, pd.DataFrame]


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_padded_rows_keep_every_member_in_its_place(sizes: list[int]) -> None:
    set_index = np.repeat(np.arange(len(sizes)), sizes)
    values = np.arange(1, len(set_index) + 1)
    places = places_of(set_index)
    rows = padded_rows(values, *places)
    assert rows.shape == (len(sizes), max(sizes))
    assert (rows > 0).sum(1).tolist() == sizes
    assert rows[places].tolist() == values.tolist()
    assert rows[rows > 0].tolist() == values.tolist()


def test_solo_measurements_are_joined(measured: Tables) -> None:
    colocation, solo = measured
    examples = examples_of(colocation.sample(frac=1, random_state=0), solo)
    assert len(examples.workloads) == len(colocation)
    assert len(examples.set_ids) == colocation.set_id.nunique()
    for workload, device in zip(examples.workloads, examples.devices, strict=True):
        row = solo[(solo.device == device) & (solo.architecture == workload.model)].iloc[0]
        assert workload.solo.step_time_s == row.step_time_s
        assert workload.solo.memory_bandwidth_ratio is None
    assert all(w.solo.step_time_s is None for w in examples.without_solo().workloads)


def test_solo_rows_of_other_campaigns_devices_and_gangs_are_not_used(measured: Tables) -> None:
    colocation, solo = measured
    for change in ({"campaign": "another"}, {"device": "a100"}, {"gpus": 2}):
        examples = examples_of(colocation, solo.assign(**change))
        assert all(w.solo.step_time_s is None for w in examples.workloads)


def test_non_targets_are_not_trained_on(measured: Tables) -> None:
    colocation, solo = measured
    hidden = colocation.assign(is_target=colocation.member == 0)
    examples = examples_of(hidden, solo)
    assert np.isnan(examples.ratio).sum() == (hidden.member == 1).sum()


def test_subset_keeps_whole_sets(measured: Tables) -> None:
    examples = examples_of(*measured)
    wanted = examples.set_ids[3:6]
    part = examples.subset(wanted)
    assert part.set_ids == wanted
    assert part.set_index.tolist() == [0, 0, 1, 1, 2, 2]
    rows = np.isin(np.array(examples.set_ids)[examples.set_index], wanted)
    np.testing.assert_array_equal(part.ratio, examples.ratio[rows])


def test_duplicate_members_are_refused(measured: Tables) -> None:
    colocation, solo = measured
    with pytest.raises(InputError, match="each member of a set once"):
        examples_of(pd.concat([colocation, colocation.iloc[:1]]), solo)


def test_settings() -> None:
    known = settings_of(["mps", "time-slice"], ["b", "never seen"], ["a", "b"])
    assert known.shape == (2, len(SHARING_MODES) + 3)
    assert known.sum(1).tolist() == [2, 2]
    assert known[0, SHARING_MODES.index("mps")] == known[0, len(SHARING_MODES) + 1] == 1
    assert known[1, -1] == 1


def test_inputs_contain_nothing_measured_under_co_location(measured: Tables, predictor: Predictor) -> None:
    """The network's inputs are the same for any ratios."""
    colocation, solo = measured
    model = predictor.fitted_.model
    first = model.inputs(examples_of(colocation, solo))
    blinded = colocation.assign(
        throughput_ratio=0.123, step_time_s=9.9, set_memory_bytes=1.0, set_utilization_ratio=0.5
    )
    second = model.inputs(examples_of(blinded, solo))
    assert first.member.shape == (colocation.set_id.nunique(), 2, member_width(NETWORK))
    for column in ("member", "demand", "setting", "present"):
        assert (getattr(first, column) == getattr(second, column)).all()
