from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from predictor import load_predictor
from predictor.fitted.checkpoint import save
from predictor.predictor import Predictor
from predictor.training.comparison import compare
from profiling.workload import ColocationSet, Workload
from tests.predictor.synthetic import NETWORK, TRAINING, graph_source

Tables = tuple[pd.DataFrame, pd.DataFrame]
QUICK = replace(TRAINING, epochs=2, encoder_steps=2)


def test_tables_may_contain_architectures_with_bounds_only(measured: Tables) -> None:
    colocation, solo = measured
    pairs = colocation.groupby("set_id").architecture.transform(lambda names: "+".join(sorted(set(names))))
    kept = colocation[pairs.isin(["alpha", "beta"])]
    assert set(kept.architecture) == {"alpha", "beta"}
    some = kept.assign(censored=kept.architecture == "beta")
    predictor = Predictor(NETWORK, QUICK, graph_source).fit(
        some, solo[solo.architecture.isin(["alpha", "beta"])]
    )
    assert compare(some, solo, NETWORK, QUICK, True, None, graph_source=graph_source) == {}
    assert predictor.predict(ColocationSet("v100", (Workload("alpha"), Workload("beta")))).members


def test_one_or_two_pairs_of_architectures_suffice(measured: Tables, tmp_path: Path) -> None:
    colocation, solo = measured
    kept = {
        name: colocation[colocation.set_id.str.endswith(ends)]
        for name, ends in (("two", ("/alpha+alpha", "/alpha+beta")), ("one", ("/alpha+alpha",)))
    }
    assert list(compare(kept["two"], solo, NETWORK, QUICK, False, None, graph_source=graph_source)) == [
        "e-ggat"
    ]
    assert compare(kept["one"], solo, NETWORK, QUICK, False, None, graph_source=graph_source) == {}
    save(Predictor(NETWORK, QUICK, graph_source).fit(kept["one"], solo), tmp_path / "model")
    assert load_predictor(str(tmp_path / "model")).fitted_.domain.radius < 1.0
