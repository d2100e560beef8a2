"""Addresses with a password: MLflow gets it from the environment, and no message repeats it."""

from __future__ import annotations

import os

import pytest

from predictor.fitted.mlflow_address import address_of, check_store, shown, signed_in
from profiling.errors import UnavailableError


@pytest.mark.parametrize(
    ("uri", "address", "user", "password"),
    [
        ("http://ann:p%40ss@host:5000/mlflow", "http://host:5000/mlflow", "ann", "p@ss"),
        ("https://ann:s:ecret@host", "https://host", "ann", "s:ecret"),
        ("http://host:5000/a@b", "http://host:5000/a@b", "env", "kept"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db", "env", "kept"),
        ("postgresql://ann:secret@host/db", "postgresql://ann:secret@host/db", "env", "kept"),
    ],
)
def test_credentials_in_an_address_go_to_the_environment(
    uri: str, address: str, user: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "env")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "kept")
    assert signed_in(uri) == address
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert address_of(None) == address
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == user
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == password


def test_messages_show_no_password() -> None:
    assert shown("postgresql://ann:secret@host/db: x") == "postgresql://ann:***@host/db: x"
    assert shown("http://host:5000/a@b") == "http://host:5000/a@b"
    with pytest.raises(UnavailableError) as failed:
        check_store("http://ann:secret@127.0.0.1:9")
    assert "secret" not in str(failed.value)
