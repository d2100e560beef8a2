"""Where a serving model comes from: the bundled default, a directory, or the champion of an MLflow registry."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from profiling.errors import InputError, UnavailableError, UnknownNameError, one_line
from profiling.graph import ComputationGraph
from profiling.workload import Workload

REGISTRY_PREFIX = "registry:"
CHAMPION = "champion"
# Prefix of a registered model's URI and, since MLflow 3, of a logged model with its own identifier.
LOGGED_PREFIX = "models:/"
GraphSource = Callable[[Workload], ComputationGraph]


def check_model(name: str) -> None:
    """Raise `InputError` for a name that is neither `default`, nor in a registry, nor a folder."""
    if name.startswith((REGISTRY_PREFIX, LOGGED_PREFIX)):
        registered(name)
    elif name != "default" and not Path(name).is_dir():
        raise UnknownNameError(
            "no such model", expected="default, a folder, models:/NAME@ALIAS, or registry:NAME", got=name
        )


def registered(name: str) -> tuple[str, str, str]:
    """Name, alias and version (one of the two empty) of `models:/NAME@ALIAS`, `models:/NAME/VERSION` or `registry:NAME`.

    `registry:NAME` is `models:/NAME@champion`.

    Raises:
        InputError: it lacks a name, or has neither an alias nor a version.
    """
    model, at, alias = name.removeprefix(LOGGED_PREFIX).partition("@")
    version = ""
    if name.startswith(REGISTRY_PREFIX):
        model, alias = name.removeprefix(REGISTRY_PREFIX), CHAMPION
    elif not at:
        model, _, version = model.partition("/")
    if not model or not (alias or version):
        raise InputError(
            "the reference names no registered model",
            expected="models:/NAME@ALIAS, models:/NAME/VERSION, or registry:NAME",
            got=name,
        )
    return model, alias, version


class ModelSource(Protocol):
    """Where a model is loaded from.

    `tag` is cheap and changes whenever the model does. `load` takes seconds and returns the model of that tag,
    which gets its graphs from `graphs`. Both raise if the source does not answer.
    """

    def tag(self) -> str: ...
    def load(self, tag: str, graphs: GraphSource) -> Any: ...


class DirectorySource:
    """A model directory, or `default`. The tag changes with any of its files but hidden ones.

    Those are what a save has not moved to its place yet: a tag of the files from before must not be that of the files
    after, or the former would stay loaded.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def tag(self) -> str:
        path = Path(self.name)
        if self.name == "default" or not path.is_dir():
            return self.name
        found = []
        for folder, inner, names in os.walk(path):  # which passes over what is removed meanwhile
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                file = Path(folder, name)
                with suppress(FileNotFoundError):
                    status = file.stat()
                    found.append((str(file), status.st_mtime_ns, status.st_ino, status.st_size))
        return f"{self.name}@{sha256(repr(found).encode()).hexdigest()[:12]}"

    def load(self, tag: str, graphs: GraphSource) -> Any:  # noqa: ARG002 (required by the protocol)
        from predictor import load_predictor

        return load_predictor(self.name, graphs)


class RegistrySource:
    """A registered model: the version that its alias points to, or a fixed version."""

    def __init__(self, name: str, tracking_uri: str | None, alias: str = CHAMPION, version: str = "") -> None:
        self.name, self.alias, self.version = name, alias, version
        self.tracking_uri = tracking_uri
        self._client: Any = None

    @property
    def client(self) -> Any:
        if self._client is None:
            from mlflow import MlflowClient, get_tracking_uri

            from predictor.fitted.mlflow_address import is_absent, shown, signed_in
            from predictor.fitted.mlflow_registry import prepare, usable

            if self.tracking_uri:
                self.tracking_uri = signed_in(self.tracking_uri)
            uri = self.tracking_uri or get_tracking_uri()
            if is_absent(uri):  # MLflow would create it
                raise UnavailableError("no such MLflow store", expected="an existing one", got=shown(uri))
            prepare()
            with usable(uri):
                self._client = MlflowClient(tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri)
        return self._client

    def tag(self) -> str:
        if self.version:
            return f"{self.name}/{self.version}"
        from mlflow.exceptions import MlflowException

        from predictor.fitted.mlflow_registry import failing_store, is_missing

        client = self.client
        with failing_store(client.tracking_uri):
            try:
                version = client.get_model_version_by_alias(self.name, self.alias)
            except MlflowException as error:
                if not is_missing(error):
                    raise
                raise UnavailableError(
                    f"registry has no {self.alias} of {self.name}", got=one_line(error, 200)
                ) from None
        return f"{self.name}/{version.version}"

    def load(self, tag: str, graphs: GraphSource) -> Any:
        from mlflow.artifacts import download_artifacts

        from predictor import load_predictor

        # Resolved with our own client, because MLflow resolves models:/ URIs in the process's store, whatever
        # is passed.
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
    """The folder at or below `root` that has `config.json` and a safetensors file."""
    for weights in sorted(root.rglob("*.safetensors")):
        if (weights.parent / "config.json").is_file():
            return weights.parent
    return root


def model_source(model: str, tracking_uri: str | None) -> ModelSource:
    """The source named by the setting `model`."""
    if model.startswith((REGISTRY_PREFIX, LOGGED_PREFIX)):
        name, alias, version = registered(model)
        return RegistrySource(name, tracking_uri, alias, version)
    return DirectorySource(model)
