"""An empty MLflow store in an SQLite file, created once per run (which takes seconds) and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.once import made_once


def empty_store(file: Path) -> str:
    """Write the store to `file`; returns its URI."""
    file.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made_once("mlflow.db", _make), file)
    return f"sqlite:///{file}"


def _make(file: Path) -> None:
    import mlflow

    uri = f"sqlite:///{file}"
    client = mlflow.MlflowClient(uri, uri)
    client.search_experiments()
    client.search_registered_models()
