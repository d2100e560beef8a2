"""Predictors in MLflow: logged with a signature and no pickle, registered, promoted, loaded by alias."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from predictor.fitted.mlflow_address import address_of, check_store, is_absent, shown
from profiling.ending import termination_as_exit
from profiling.errors import InputError, UnavailableError, one_line, shortened

REGISTERED_NAME = "cotenant"
CHAMPION = "champion"
# Tag of a registered version.
_MODEL_VERSION = "model_version"
# Advice to a user whom a server refuses.
_SIGN_IN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, of a user with the permission"
_FLAVOUR = Path(__file__).parent / "mlflow_flavour.py"
# Input of a logged predictor.
_EXAMPLE = [
    ("1", "v100", "time-slice", "resnet18-cifar:batch_size=64"),
    ("1", "v100", "time-slice", "lstm-wikitext2:batch_size=20"),
]


def use_store(tracking_uri: str | None) -> None:
    """Set the MLflow store: the given one, the environment's, or an SQLite file in the working folder.

    Raises:
        InputError: MLflow knows no such kind of store, or cannot read it.
    """
    import os

    uri = address_of(tracking_uri)
    check_store(uri)
    # Takes seconds to import, and a wrong path should be reported first.
    import mlflow

    prepare()
    if tracking_uri or uri != os.environ.get("MLFLOW_TRACKING_URI"):
        mlflow.set_tracking_uri(uri)
    if is_absent(mlflow.get_tracking_uri()):
        return
    with usable(mlflow.get_tracking_uri()):
        mlflow.MlflowClient()


def prepare() -> None:
    """Have MLflow write neither to stderr, the log of a service, nor to stdout, and soon report a server that is down."""
    import logging
    import os

    from mlflow.environment_variables import (
        MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR,
        MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT,
    )

    # Hide messages about creating tables and validating an example, and tracebacks of errors that are raised, too.
    for name, level in (("mlflow.store.db.utils", logging.CRITICAL), ("mlflow.pyfunc", logging.WARNING)):
        logging.getLogger(name).setLevel(level)
    # No progress bars for five small files.
    MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR.set(False)
    # No links to a run on a server.
    MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.set(True)
    # It would retry for minutes, while a person waits for the answer or a service follows no champion.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")


@contextmanager
def usable(uri: str) -> Iterator[None]:
    """Context for creating a client of that store.

    Raises:
        InputError: MLflow cannot use it.
    """
    from alembic.util import CommandError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except MlflowException as error:
        raise InputError(
            "the MLflow store cannot be used",
            expected="sqlite:///FILE or http(s)://HOST",
            got=shown(f"{uri}: {one_line(error)}"),
        ) from None
    except (SQLAlchemyError, CommandError) as error:
        cause = getattr(error, "orig", None) or error
        raise InputError(
            "the MLflow store cannot be used",
            expected="an intact MLflow database",
            got=shown(f"{uri}: {' '.join(str(cause).split())[:160]}"),
            hint="if MLflow was killed while creating the file, it has no runs yet, so delete it; otherwise "
            "restore a backup"
            if uri.startswith("sqlite:")
            else None,
        ) from None


@contextmanager
def failing_store(uri: str) -> Iterator[None]:
    """Turn what MLflow raises when its store fails within the block into `UnavailableError`."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        cause = cause.partition(" (Background on this error")[0]
        raise UnavailableError(
            "the MLflow store failed",
            got=shown(f"{uri}: {shortened(cause, 200)}"),
            hint=_SIGN_IN
            if is_refusal(error)
            else "if its disk is full, free some space, or name another store with --tracking-uri",
        ) from error


def is_refusal(error: BaseException) -> bool:
    """Whether a server refused the request of this user, or of one without credentials."""
    return getattr(error, "error_code", None) in ("UNAUTHENTICATED", "PERMISSION_DENIED")


def is_missing(error: BaseException) -> bool:
    """Whether a store that works has no such registered model, version or alias."""
    return getattr(error, "error_code", None) in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST")


def use_experiment(name: str) -> None:
    """Log to the experiment of that name; a new one in an SQLite store keeps its artifacts beside the file.

    Raises:
        InputError: it was deleted, or the name is none.
        UnavailableError: the store cannot be created, as on a full disk, or refuses this user.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    uri = mlflow.get_tracking_uri()
    with failing_store(uri):
        if is_absent(uri):
            _make_store(Path(uri.removeprefix("sqlite:///")))
        try:
            _set_experiment(uri, name)
        except MlflowException as error:
            if is_refusal(error):
                raise
            raise InputError(
                "the MLflow experiment cannot be used",
                expected="an experiment that is not deleted, or a name for a new one",
                got=f"{name!r}: {one_line(error)}",
                hint="`--experiment` names another",
            ) from None


def _set_experiment(uri: str, name: str) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    if uri.startswith("sqlite:///") and mlflow.get_experiment_by_name(name) is None:
        folder = Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts"
        try:
            mlflow.create_experiment(name, artifact_location=folder.as_uri())
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process was faster
                raise
    mlflow.set_experiment(name)


def _make_store(file: Path) -> None:
    """Create an SQLite store atomically.

    MLflow takes seconds to create its tables, and a store left half created by a kill would never work.
    """
    import tempfile

    import mlflow

    with (
        termination_as_exit(),
        tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder,
    ):
        made = Path(folder) / file.name
        mlflow.MlflowClient(f"sqlite:///{made}", f"sqlite:///{made}").search_experiments()
        # Another training may have been faster. Without hard links, MLflow creates the store in place.
        with suppress(OSError):
            file.hardlink_to(made)


def log_predictor(folder: Path) -> str:
    """Log the checkpoint in `folder` to the active run and register it.

    The model is logged as code with the checkpoint as an artifact, so that loading runs no pickle.

    Returns:
        its version in the registry.
    """
    import shutil
    import tempfile

    import mlflow
    import pandas as pd
    from mlflow.models import infer_signature

    from predictor.fitted.checkpoint import load

    example = pd.DataFrame(_EXAMPLE, columns=["set_id", "device", "sharing", "workload"])
    answer = example[["set_id", "workload"]].assign(
        slowdown=1.0, step_time_s=1.0, memory_bytes=1.0, utilization_ratio=1.0
    )
    with termination_as_exit(), tempfile.TemporaryDirectory(prefix="cotenant-model-") as copied:
        # MLflow parses the name of the folder as an address, in which `#`, `?` and `%` have a meaning.
        checkpoint = shutil.copytree(folder, Path(copied) / "predictor")
        logged = mlflow.pyfunc.log_model(
            name="predictor",
            python_model=str(_FLAVOUR),
            artifacts={"predictor": str(checkpoint)},
            signature=infer_signature(example, answer),
            input_example=example,
            registered_model_name=REGISTERED_NAME,
            pip_requirements=["cotenant"],
        )
    version = str(logged.registered_model_version)
    mlflow.MlflowClient().set_model_version_tag(
        REGISTERED_NAME, version, _MODEL_VERSION, load(folder).version
    )
    return version


def registered_as(model_version: str) -> dict[str, str] | None:
    """The latest registered version of a predictor, and the run of it; None if it is not registered.

    Args:
        model_version: the version that its answers name.
    """
    import mlflow

    entries = mlflow.MlflowClient().search_model_versions(f"name='{REGISTERED_NAME}'")
    same = [entry for entry in entries if entry.tags.get(_MODEL_VERSION) == model_version]
    if not same:
        return None
    latest = max(same, key=lambda entry: int(entry.version))
    return {"version": str(latest.version), "run_id": str(latest.run_id)}


@contextmanager
def fetched(uri: str) -> Iterator[Path]:
    """Folder of the checkpoint behind `models:/NAME@ALIAS` or `models:/NAME/VERSION`, fetched from the store.

    It is removed after the block; MLflow itself would leave what a server sent.

    Raises:
        UnavailableError: the store cannot be reached or has no such model.
        InputError: the registered model is not a checkpoint of this project.
    """
    import sys
    import tempfile

    if "mlflow" not in sys.modules:  # no store has been chosen yet
        if is_absent(address_of(None)):
            raise UnavailableError(
                f"{uri} cannot be loaded",
                expected="an MLflow store",
                got=f"no {address_of(None)} in this folder",
                hint="run this where mlflow.db is, or set MLFLOW_TRACKING_URI",
            )
        use_store(None)
    import mlflow
    from mlflow.exceptions import MlflowException

    with termination_as_exit(), tempfile.TemporaryDirectory(prefix="cotenant-model-") as target:
        try:
            path = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=target))
        except (MlflowException, OSError) as error:
            raise UnavailableError(
                f"{uri} cannot be loaded",
                got=shown(one_line(error)).rstrip("."),
                hint=_SIGN_IN
                if is_refusal(error)
                else "`cotenant models list` shows registered versions, `cotenant models promote` sets the champion",
            ) from None
        folder = next((p.parent for p in path.rglob("config.json")), None)
        if folder is None:
            raise InputError(f"{uri} holds no predictor", expected="a checkpoint logged by `cotenant train`")
        yield folder


def versions() -> list[dict[str, Any]]:
    """Registered versions, newest first: version, aliases, run id, metrics of the run (None once it is deleted).

    Raises:
        UnavailableError: the store fails, or refuses this user.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    uri = mlflow.get_tracking_uri()
    if is_absent(uri):
        return []
    client, champion = mlflow.MlflowClient(), champion_version()
    result = []
    with failing_store(uri):
        entries = client.search_model_versions(f"name='{REGISTERED_NAME}'")
    for entry in entries:
        metrics: dict[str, float] = {}
        with suppress(MlflowException):
            metrics = client.get_run(entry.run_id).data.metrics if entry.run_id else {}
        result.append(
            {
                "version": str(entry.version),
                "champion": str(entry.version) == champion,
                "run_id": entry.run_id,
                "mape_percent": metrics.get("e-ggat mape_percent"),
                "r2": metrics.get("e-ggat r2"),
            }
        )
    return sorted(result, key=lambda row: -int(row["version"]))


def champion_version() -> str | None:
    """The version with the alias `champion`; None if none has it.

    Raises:
        UnavailableError: the store fails, or refuses this user.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    with failing_store(mlflow.get_tracking_uri()):
        try:
            return str(mlflow.MlflowClient().get_model_version_by_alias(REGISTERED_NAME, CHAMPION).version)
        except MlflowException as error:
            if is_missing(error):
                return None
            raise


def shipped() -> dict[str, Any]:
    """The shipped predictor as a row of `versions`, with its error on pairs held out of its training."""
    from profiling.files import read_json

    body = read_json(Path(__file__).parents[1] / "checkpoints" / "default" / "metrics.json")
    scores = body["comparison"]["e-ggat"]
    return {
        "version": "default",
        "champion": False,
        "run_id": None,
        "mape_percent": scores["mape_percent"],
        "r2": scores["r2"],
    }


def make_champion(version: str, promoted: bool = True) -> None:
    """Record on `version` whether it was promoted, and if so, give it the alias `champion`.

    Raises:
        UnavailableError: the version was deleted, or the store cannot be written.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    try:
        if promoted:
            client.set_registered_model_alias(REGISTERED_NAME, CHAMPION, version)
        client.set_model_version_tag(REGISTERED_NAME, version, "promoted", str(promoted).lower())
    except MlflowException as error:
        raise UnavailableError(
            f"version {version} cannot be marked in the registry",
            got=shown(one_line(error)).rstrip("."),
            hint=_SIGN_IN if is_refusal(error) else "`cotenant models list` shows registered versions",
        ) from None
