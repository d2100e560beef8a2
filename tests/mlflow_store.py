"""An empty MLflow store in an SQLite file. Its tables are made once a process, which takes seconds, and copied."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path


def empty_store(file: Path) -> str:
    """Write the store to `file`; returns its URI."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_empty())
    return f"sqlite:///{file}"


@cache
def _empty() -> bytes:
    import mlflow

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mlflow.db"
        uri = f"sqlite:///{file}"
        client = mlflow.MlflowClient(uri, uri)
        client.search_experiments()
        client.search_registered_models()
        return file.read_bytes()
