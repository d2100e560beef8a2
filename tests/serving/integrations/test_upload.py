"""When a controller stores its cluster again."""

from __future__ import annotations

from typing import Any

import pytest

from serving.integrations import upload
from serving.integrations.upload import Upload, valid_for_s
from tests.serving.integrations.kubernetes_stand_in import Stored

CLUSTER: dict[str, Any] = {"nodes": [{"name": "n", "gpus": []}]}


def test_an_unchanged_cluster_is_stored_again_before_it_is_outdated(monkeypatch: pytest.MonkeyPatch) -> None:
    service, now_s = Stored(), 1000.0
    monkeypatch.setattr(upload.time, "monotonic", lambda: now_s)
    kept = Upload(service, 600.0)  # type: ignore[arg-type]
    for now_s, stored in ((1000.0, 1), (1005.0, 1), (1199.0, 1), (1200.0, 2), (1205.0, 2), (1400.0, 3)):
        assert kept.store(CLUSTER)
        assert service.valid_s == [600.0] * stored, now_s


def test_what_is_stored_once_is_never_outdated(monkeypatch: pytest.MonkeyPatch) -> None:
    service, times = Stored(), iter((0.0, 1e6))
    monkeypatch.setattr(upload.time, "monotonic", lambda: next(times))
    once = Upload(service, None)  # type: ignore[arg-type]
    assert once.store(CLUSTER)
    assert once.store(CLUSTER)
    assert service.valid_s == [None]


@pytest.mark.parametrize("period_s", [1.0, 60.0, 1000.0])
def test_a_look_may_be_missed(period_s: float) -> None:
    """It is stored again at the first look after a third of the time."""
    assert valid_for_s(period_s) / 3 + 2 * period_s < valid_for_s(period_s)
