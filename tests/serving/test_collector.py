"""Full garbage collections stay short, and no garbage is kept forever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from serving import collector
from serving.collector import settle


class Ring:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def freezing() -> Iterator[None]:
    collector.freeze_survivors()
    try:
        yield
    finally:
        gc.callbacks.remove(collector._freeze)
        gc.unfreeze()


def test_survivors_of_a_full_collection_are_frozen(freezing: None) -> None:
    collector.freeze_survivors()
    assert gc.callbacks.count(collector._freeze) == 1
    kept = Ring()
    gc.collect()
    assert all(kept is not other for other in gc.get_objects())
    assert gc.get_freeze_count() > 1000


def test_frozen_garbage_is_freed_when_idle(freezing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "settle", settle)
    ring = Ring()
    gone = weakref.ref(ring)
    gc.collect()
    del ring
    gc.collect()
    assert gone() is not None, "frozen before it became garbage"
    collector.settle_now_and_then(idle=True)
    assert gone() is not None, "not an hour yet"
    monkeypatch.setattr(collector, "_settled_at", collector._settled_at - 4000)
    collector.settle_now_and_then(idle=False)
    assert gone() is not None, "somebody waits"
    collector.settle_now_and_then(idle=True)
    assert gone() is None
