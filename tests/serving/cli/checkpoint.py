"""A predictor that is fitted in a second, as a folder, for tests of commands. Its graphs are synthetic."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from datasets.tables import write_table
from predictor.fitted.checkpoint import save
from predictor.predictor import Predictor
from tests.once import made_once
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source, tables


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`model/` (trained on the V100 rows only) and `tables/`; commands use the synthetic graphs."""
    root = tmp_path_factory.mktemp("commands")
    shutil.copytree(made_once("fitted", _fit), root, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("profiling.capture.graph_for", graph_source)
        patch.setattr("profiling.capture.naming.check_model", graph_source)
        yield root


def _fit(root: Path) -> None:
    colocation, solo = tables()
    for name, table in (("colocation", colocation), ("solo", solo)):
        write_table(root / "tables", name, table)
    training = replace(TRAINING, epochs=3, encoder_steps=2)
    few = [t[t.device == "v100"] for t in (colocation, solo)]
    save(Predictor(NETWORK, training, graph_source).fit(*few), root / "model")
