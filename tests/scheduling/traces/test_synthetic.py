from __future__ import annotations

import pytest

from profiling.errors import InputError
from scheduling.traces.synthetic import parse_synthetic


def test_settings_have_defaults() -> None:
    assert parse_synthetic("rate=60,jobs=8") == {
        "rate": 60.0, "jobs": 8.0, "mean_s": 3600.0, "sigma": 1.0, "gangs": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rate=inf", r"rate is out of range: expected a number from 0.001 to 1e\+06, got 'inf'"),
        ("rate=0", "rate is out of range"),
        ("rate=fast", "rate is out of range: .* got 'fast'"),
        ("rate", "rate is out of range: .* got ''"),
        ("jobs=2.5", r"jobs is out of range: expected a whole number from 1 to 1e\+07, got '2.5'"),
        ("jobs=1e9", "jobs is out of range"),
        ("mean_s=nan", "mean_s is out of range"),
        ("mean_s=inf", "mean_s is out of range"),
        ("sigma=9", "sigma is out of range: expected a number from 0 to 5"),
        ("gangs=2", "gangs is out of range"),
        ("rat=1", "expected keys among rate, jobs, mean_s, sigma, gangs, each once, got 'rat'"),
        ("rate=1,rate=2", "each once"),
    ],
)
def test_bad_settings_name_their_range(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_synthetic(spec)
