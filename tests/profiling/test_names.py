from __future__ import annotations

from profiling.names import near_names, one_of


def test_similar_names() -> None:
    assert near_names("batch", ["batch_size", "precision"]) == ["batch_size"]
    assert near_names("fif", ["sjf", "fifo"]) == ["fifo"]
    assert near_names("", ["fifo"]) == []
    assert near_names("zzz", ["fifo"]) == []


def test_long_lists_suggest_only_similar_names() -> None:
    assert one_of("fif", ["sjf", "fifo", "srtf"]) == "one of fifo, sjf, srtf"
    assert one_of("fif", ["fifo", *"abcdefghi"]) == "one of 10 names, such as fifo"
    assert one_of("zzz", "abcdefghij") == "one of a, b, c, d, e, f, g, h, i, j"
