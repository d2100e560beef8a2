"""A predictor by name."""

from __future__ import annotations

from pathlib import Path

from predictor.examples.featurizer import GraphSource
from predictor.fitted.checkpoint import load
from predictor.fitted.mlflow_registry import fetch_registered
from predictor.predictor import Predictor
from profiling.errors import UnknownNameError

PACKAGED = Path(__file__).parent / "checkpoints"


def load_predictor(name: str = "default", graph_source: GraphSource | None = None) -> Predictor:
    """A predictor by name: `default` (ships with the project), a folder, or `models:/...` of the MLflow registry.

    Raises:
        UnknownNameError: there is no such predictor.
        UnavailableError: the registry cannot be reached, or has no such model.
    """
    if name.startswith("models:/"):
        return load(fetch_registered(name), graph_source)
    for folder in (PACKAGED / name, Path(name)):
        if folder.is_dir():
            return load(folder, graph_source)
    raise UnknownNameError("no such predictor", expected="default, a folder, or models:/NAME@ALIAS", got=name)
