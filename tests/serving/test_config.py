"""Settings of the service."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profiling.errors import InputError
from serving.config import ServiceConfig, limit_types


def test_limits_are_those_of_the_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    table = text.partition("\n## Limits\n")[2].partition("\n\nJob options")[0]
    names = [
        name for first in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in first.split(", ")
    ]
    assert sorted(names) == sorted(f"`{name}`" for name in limit_types())


@pytest.mark.parametrize(
    ("pair", "words"),
    [("workers=5", "--workers sets it"), ("set_job=5", "such as set_jobs"), ("set_jobs=x", "not a number")],
)
def test_invalid_limits(pair: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ServiceConfig().with_limits([pair])
    assert ServiceConfig().with_limits(["set_jobs=5"]).set_jobs == 5
