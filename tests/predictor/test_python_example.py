"""The example of docs/training.md, run as is on the synthetic measurements."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from datasets.tables import write_table
from predictor import predictor as module
from predictor.predictor import Predictor
from predictor.training.fine_tuning import FineTuning
from profiling.errors import UnavailableError
from profiling.workload import Workload
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

DOCS = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_example_runs(
    measured: tuple[pd.DataFrame, pd.DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    for name, table in zip(("colocation", "solo"), measured, strict=True):
        write_table(tmp_path / "tables", name, table)
    known = {"resnet18-cifar": "alpha", "lstm-wikitext2": "beta"}
    monkeypatch.setattr(
        "profiling.capture.graph_for",
        lambda workload: graph_source(replace(workload, model=known.get(workload.model, workload.model))),
    )
    monkeypatch.setattr(module, "NetworkConfig", lambda: NETWORK)
    monkeypatch.setattr(module, "TrainingConfig", lambda: TRAINING)
    monkeypatch.setattr("predictor.training.fit.CROSS_FITS", 2)
    quick = partial(FineTuning, epochs=3, cross_fits=1)
    monkeypatch.setattr("predictor.training.fine_tuning.FineTuning", quick)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    exec(compile(code, str(DOCS), "exec"), space)
    first, second, third = capsys.readouterr().out.strip().splitlines()
    assert -100 < float(first) <= 1
    assert "Quantity(value=" in second
    assert third.startswith("Quantity(value=")
    assert (tmp_path / "my-model" / "config.json").is_file()


def test_follows_scikit_learn_conventions(
    measured: tuple[pd.DataFrame, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("predictor.training.fit.CROSS_FITS", 2)
    predictor = Predictor(NETWORK, TRAINING, graph_source)
    assert (predictor.network, predictor.training, predictor.graph_source) == (
        NETWORK,
        TRAINING,
        graph_source,
    )
    assert not hasattr(predictor, "fitted_")
    with pytest.raises(UnavailableError, match="fit"):
        predictor.score(*measured)
    assert predictor.fit(*measured) is predictor
    assert hasattr(predictor, "fitted_")
    unseen = measured[0].assign(set_id="again/" + measured[0].set_id)
    assert predictor.score(unseen, measured[1]) > 0
    # What it was fitted on before leaves no trace.
    weights = predictor.fitted_.model.networks[0].slow.weight
    again = predictor.fit(*measured).fitted_.model.networks[0].slow.weight
    assert (weights == again).all()
    assert Workload.parse("alpha:batch_size=32") in {
        w.without_solo() for w, _ in predictor.fitted_.model.encode([])
    }
