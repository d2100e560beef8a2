"""Messages of errors."""

from __future__ import annotations

import pytest

from profiling.errors import InputError, one_line, shortened


def test_long_text_lacks_its_middle() -> None:
    assert shortened("short", 5) == "short"
    assert shortened("abcdefghijklmnopqrstuvwxyz", 16) == "abcdefgh ... xyz"


def test_an_error_of_several_lines_becomes_one() -> None:
    assert one_line(ValueError("first\n  second   third")) == "first second third"
    assert one_line(ValueError("abcdef"), 3) == "abc"


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


@pytest.mark.parametrize(
    ("got", "hint", "message"),
    [
        ("a, b, ...", None, "No: got a, b, ..."),
        ("a, b, ...", "Give one.", "No: got a, b, ... Give one."),
        ("a, b, ...", "give one", "No: got a, b, ...; give one."),
        ("Not a Parquet file.", None, "No: got Not a Parquet file."),
        ("Not a Parquet file.", "Give one.", "No: got Not a Parquet file. Give one."),
        (".", None, "No: got .."),
    ],
)
def test_a_message_ends_with_one_full_stop(got: str, hint: str | None, message: str) -> None:
    assert InputError("No", got=got, hint=hint).message == message


def test_no_part_of_a_message_is_as_long_as_the_input() -> None:
    long = "a" * 100_000
    error = InputError(f"input {long!r} is odd", expected=long, got=long, hint=long)
    body = error.problem()
    assert body["detail"].startswith("input 'aaa")
    assert "aaa' is odd: expected aaa" in body["detail"]
    assert all(len(str(value)) <= 4100 for value in body.values())
