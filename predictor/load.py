"""Loads a predictor by name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.errors import CotenantError, UnknownNameError

if TYPE_CHECKING:
    from predictor.examples.featurizer import GraphSource
    from predictor.predictor import Predictor

PACKAGED = Path(__file__).parent / "checkpoints"
REGISTERED = "models:/"


def load_predictor(name: str | Path = "default", graph_source: GraphSource | None = None) -> Predictor:
    """Load a predictor by name: `default` (shipped), a folder, or `models:/...` of the MLflow registry.

    Raises:
        UnknownNameError: no such predictor.
        UnavailableError: the registry cannot be reached, or has no such model.
    """
    name = str(name)
    if name.startswith(REGISTERED):
        from predictor.fitted.mlflow_registry import fetched

        there: AbstractContextManager[Path] = fetched(name)
    else:
        there = nullcontext(_folder_of(name))
    with there as folder:
        # Torch takes seconds to import; a wrong name should not wait for it.
        from predictor.fitted.checkpoint import load

        try:
            return load(folder, graph_source)
        except CotenantError as error:
            # A fetched one lies in a temporary folder.
            detail = error.detail.replace(str(folder), name)
            raise type(error)(detail, expected=error.expected, got=error.got, hint=error.hint) from error


def _folder_of(name: str) -> Path:
    for folder in (PACKAGED / name, Path(name)):
        if name and folder.is_dir():
            return folder
    raise UnknownNameError("no such predictor", expected="default, a folder, or models:/NAME@ALIAS", got=name)
