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


def test_without_tokens_only_on_loopback() -> None:
    assert not ServiceConfig().tokens_required
    assert ServiceConfig(host="0.0.0.0").tokens_required
    assert not ServiceConfig(host="::1").tokens_required
    assert ServiceConfig(trusted_proxies=("127.0.0.1",)).tokens_required, "requests may come from elsewhere"
    assert ServiceConfig(allowed_hosts=("cotenant.example",)).tokens_required
    assert not ServiceConfig(trusted_proxies=("127.0.0.1",), auth="off").tokens_required
    with pytest.raises(InputError, match="loopback"):
        ServiceConfig(host="0.0.0.0", auth="off")
