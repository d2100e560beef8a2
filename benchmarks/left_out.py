"""Predictors trained without the pairs they predict: one per fold of a by-pair split, behind one
interface."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.types import PredictionArrays, SetPredictor
from profiling.workload import ColocationSet

if TYPE_CHECKING:
    from predictor.examples.cross_fit import ExampleFold


class LeftOut:
    """Predict each set with the predictor fitted without its pair of models.

    Args:
        predictors: one per fold.
        fold_of: sorted architectures of a set -> fold that left it out. Sets in no fold were seen by no
            predictor.
    """

    def __init__(self, predictors: Sequence[SetPredictor], fold_of: dict[tuple[str, ...], int]) -> None:
        self.predictors, self.fold_of = predictors, fold_of

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`."""
        folds = np.array(
            [self.fold_of.get(tuple(sorted(w.model for w in s.workloads)), 0) for s in sets], int
        )
        answers = [predictor.predict_arrays(sets) for predictor in self.predictors]
        chosen: dict[str, Any] = {
            f.name: np.stack([getattr(a, f.name) for a in answers])[folds, np.arange(len(sets))]
            for f in fields(PredictionArrays)
        }
        return PredictionArrays(**chosen)


def left_out_predictor(model: str, data: Path, folds: int, pool: Executor) -> LeftOut:
    """Fit `model`'s configuration `folds` times on `data` and the bundled measurements, leaving out pairs in
    turn."""
    from datasets.splits import make_split
    from predictor import load_predictor
    from predictor.examples.cross_fit import cross_fit, fold_groups
    from predictor.examples.examples import examples_of

    colocation, solo = _tables(data)
    split = make_split(colocation, "by-pair", 0, folds)
    names = colocation.groupby("set_id")["architecture"].agg(lambda a: tuple(sorted(a)))
    fold_of = {names[set_id]: number for number, fold in enumerate(split) for set_id in fold.test_set_ids}
    print(f"fitting {folds} predictors without the pairs that they are asked about", flush=True)
    examples = examples_of(colocation, solo)
    with tempfile.TemporaryDirectory() as folder:  # predictors pass between processes as checkpoints
        places = cross_fit(
            examples, fold_groups(examples, split), partial(_fit, model, Path(folder), solo), pool.map
        )
        return LeftOut([load_predictor(str(place)) for place in places], fold_of)


def _tables(data: Path) -> tuple[Any, Any]:
    import pandas as pd

    import datasets.bundled
    from datasets.tables import read_table

    folders = (data, Path(datasets.bundled.__file__).parent)
    colocation, solo = (
        pd.concat([read_table(folder, name) for folder in folders], ignore_index=True)
        for name in ("colocation", "solo")
    )
    return colocation, solo


def _fit(model: str, folder: Path, solo: Any, fold: ExampleFold) -> Path:
    """Fit the configuration of `model` and save it.

    Solo measurements of all jobs are known. The intervals and domain of `model` are kept, because no policy
    reads them.
    """
    from predictor import Predictor, load_predictor
    from predictor.fitted.checkpoint import save
    from predictor.training.fit import solo_examples
    from predictor.training.heads import fit_heads
    from predictor.training.networks import fit

    base = load_predictor(model)
    featurizer = base.fitted_.model.featurizer
    assert base.network is not None
    assert base.training is not None
    fitted = fit(fold.train, solo_examples(solo), featurizer, base.network, base.training)
    heads = fit_heads(fold.train, solo, featurizer)
    left_out = replace(base.fitted_, model=fitted, heads=heads)
    return save(Predictor.of(left_out, "left-out", base.network, base.training), folder / fold.name)
