"""Where a serving model comes from: the bundled default, a directory, or the champion of an MLflow registry."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from profiling.errors import InputError, UnavailableError, UnknownNameError
from profiling.graph import ComputationGraph
from profiling.workload import Workload

REGISTRY_PREFIX = "registry:"
CHAMPION = "champion"
GraphSource = Callable[[Workload], ComputationGraph]


def check_model(name: str) -> None:
    """Raise `UnknownNameError` for a name that cannot be a model: neither `default`, nor `registry:NAME`, nor a folder."""
    if name != "default" and not name.startswith(REGISTRY_PREFIX) and not Path(name).is_dir():
        raise UnknownNameError("no such model", expected="default, a folder, or registry:NAME", got=name)


class ModelSource(Protocol):
    """`tag` is cheap and changes whenever there is another model; `load` is not cheap; the model takes graphs from `graphs`."""

    def tag(self) -> str: ...
    def load(self, tag: str, graphs: GraphSource) -> Any: ...


class DirectorySource:
    """A model directory, or `default`. The tag changes when any of its files does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def tag(self) -> str:
        path = Path(self.name)
        if self.name == "default" or not path.is_dir():
            return self.name
        files = sorted(p for p in path.rglob("*") if p.is_file())
        newest = max((p.stat().st_mtime_ns for p in files), default=0)
        return f"{self.name}@{len(files)}-{newest}"

    def load(self, tag: str, graphs: GraphSource) -> Any:  # noqa: ARG002 (as its protocol)
        from predictor import load_predictor

        return load_predictor(self.name, graphs)


# MLflow 3 registers a logged model by its own identifier.
LOGGED_PREFIX = "models:/"


class RegistrySource:
    """The version that the registered model's alias `champion` points to."""

    def __init__(self, name: str, tracking_uri: str | None) -> None:
        if not name:
            raise InputError("no registered model is named", expected="registry:NAME", got="registry:")
        self.name, self.tracking_uri = name, tracking_uri
        self._client: Any = None

    @property
    def client(self) -> Any:
        if self._client is None:
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri)
        return self._client

    def tag(self) -> str:
        from mlflow.exceptions import MlflowException

        try:
            version = self.client.get_model_version_by_alias(self.name, CHAMPION)
        except MlflowException as error:
            raise UnavailableError(
                f"registry has no {CHAMPION} of {self.name}", got=" ".join(str(error).split())[:200]
            ) from None
        return f"{self.name}/{version.version}"

    def load(self, tag: str, graphs: GraphSource) -> Any:
        from mlflow.artifacts import download_artifacts

        from predictor import load_predictor

        # Asked of our own client: MLflow resolves a models:/ address at the store of the process, whatever is passed.
        entry = self.client.get_model_version(*tag.rsplit("/", 1))
        where = entry.source
        if where.startswith(LOGGED_PREFIX):
            where = self.client.get_logged_model(where.removeprefix(LOGGED_PREFIX)).artifact_location
        with tempfile.TemporaryDirectory(prefix="cotenant-model-") as folder:
            got = Path(
                download_artifacts(artifact_uri=where, dst_path=folder, tracking_uri=self.tracking_uri)
            )
            return load_predictor(str(model_directory(got)), graphs)


def model_directory(root: Path) -> Path:
    """The folder with `config.json` beside a safetensors file, at `root` or below it."""
    for weights in sorted(root.rglob("*.safetensors")):
        if (weights.parent / "config.json").is_file():
            return weights.parent
    return root


def model_source(model: str, tracking_uri: str | None) -> ModelSource:
    """The source that the setting `model` names."""
    if model.startswith(REGISTRY_PREFIX):
        return RegistrySource(model.removeprefix(REGISTRY_PREFIX), tracking_uri)
    return DirectorySource(model)
