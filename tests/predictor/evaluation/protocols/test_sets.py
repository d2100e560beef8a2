from __future__ import annotations

from predictor.evaluation.protocols.sets import resident
from tests.models.baselines.test_baselines import SOLO, TRAIN


def test_sets_with_a_member_not_resident_are_left_out() -> None:
    alone = float(SOLO["memory_bytes"].max())
    ids = TRAIN["set_id"].unique()
    frame = TRAIN.assign(set_memory_bytes=(3 * alone))
    assert set(resident(frame, {"solo": SOLO})["set_id"]) == set(ids)
    frame.loc[frame["set_id"] == ids[0], "set_memory_bytes"] = 0.1 * float(SOLO["memory_bytes"].min())
    kept = resident(frame, {"solo": SOLO})
    assert set(kept["set_id"]) == set(ids[1:])
    assert list(kept.columns) == list(frame.columns)
