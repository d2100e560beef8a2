"""Messages of errors."""

from __future__ import annotations

import pytest

from profiling.errors import InputError, shortened


def test_long_text_lacks_its_middle() -> None:
    assert shortened("short", 5) == "short"
    assert shortened("abcdefghijklmnopqrstuvwxyz", 16) == "abcdefgh ... xyz"


@pytest.mark.parametrize(
    ("detail", "message"),
    [
        ("no tables in .", "no tables in .: expected some."),
        ("no tables in ..", "no tables in ..: expected some."),
        ("no tables in data/.", "no tables in data/.: expected some."),
        ("Nothing here.", "Nothing here: expected some."),
    ],
)
def test_a_folder_named_by_a_dot_is_kept(detail: str, message: str) -> None:
    assert InputError(detail, expected="some").message == message


def test_no_part_of_a_message_is_as_long_as_the_input() -> None:
    long = "a" * 100_000
    error = InputError(f"input {long!r} is odd", expected=long, got=long, hint=long)
    body = error.problem()
    assert body["detail"].startswith("input 'aaa")
    assert "aaa' is odd: expected aaa" in body["detail"]
    assert all(len(str(value)) <= 4100 for value in body.values())
