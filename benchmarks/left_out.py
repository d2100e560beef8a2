"""Predictors trained without the pairs, or the models, that they predict: one per fold of a split, behind one
interface."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.types import PredictionArrays, SetPredictor
from profiling.workload import ColocationSet

if TYPE_CHECKING:
    from datasets.splits import Fold
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


class NewModels:
    """Predict each member with the predictor that never saw its model, neither in sets nor alone.

    Args:
        predictors: by the model that each was fitted without.
    """

    def __init__(self, predictors: Mapping[str, SetPredictor]) -> None:
        self.predictors = predictors

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`. What is one number for a set is that of the first member's predictor."""
        models = list(self.predictors)
        answers = [predictor.predict_arrays(sets) for predictor in self.predictors.values()]
        own = np.zeros(answers[0].mask.shape, int)
        for row, s in enumerate(sets):
            own[row, : len(s.workloads)] = [models.index(w.model) for w in s.workloads]
        chosen: dict[str, Any] = {}
        for f in fields(PredictionArrays):
            stacked = np.stack([getattr(a, f.name) for a in answers])
            rows = np.arange(len(sets))
            chosen[f.name] = (
                stacked[own[:, 0], rows]
                if stacked.ndim == 2
                else np.take_along_axis(stacked, own[None], axis=0)[0]
            )
        return PredictionArrays(**chosen)


def left_out_predictor(model: str, data: Path, folds: int, pool: Executor) -> LeftOut:
    """Fit `model`'s configuration `folds` times on `data` and the bundled measurements, leaving out pairs in
    turn."""
    from datasets.splits import make_split

    colocation, solo = _tables(data)
    split = make_split(colocation, "by-pair", 0, folds)
    names = colocation.groupby("set_id")["architecture"].agg(lambda a: tuple(sorted(a)))
    fold_of = {names[set_id]: number for number, fold in enumerate(split) for set_id in fold.test_set_ids}
    return LeftOut(_fitted(model, colocation, solo, split, pool), fold_of)


def new_models_predictor(model: str, data: Path, pool: Executor) -> NewModels:
    """Fit `model`'s configuration on `data` and the bundled measurements, leaving out each model of `data` in turn."""
    from datasets.splits import make_split
    from datasets.tables import read_table

    colocation, solo = _tables(data)
    models = sorted(set(read_table(data, "colocation")["architecture"]))
    split = [fold for fold in make_split(colocation, "by-model") if fold.name in models]
    return NewModels(
        dict(zip((f.name for f in split), _fitted(model, colocation, solo, split, pool), strict=True))
    )


def _fitted(
    model: str, colocation: Any, solo: Any, split: Sequence[Fold], pool: Executor
) -> list[SetPredictor]:
    """One predictor for each fold of a split of set ids."""
    from predictor import load_predictor
    from predictor.examples.cross_fit import cross_fit, fold_groups
    from predictor.examples.examples import examples_of

    print(f"fitting {len(split)} predictors without what they are asked about", flush=True)
    examples = examples_of(colocation, solo)
    with tempfile.TemporaryDirectory() as folder:  # predictors pass between processes as checkpoints
        places = cross_fit(
            examples, fold_groups(examples, split), partial(_fit, model, Path(folder), solo), pool.map
        )
        return [load_predictor(str(place)) for place in places]


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

    Solo measurements are known of all jobs but those of models that are left out altogether. The intervals and
    domain of `model` are kept, because no policy reads them.
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
    solo = solo[~solo.architecture.isin(fold.group.architectures)]
    fitted = fit(fold.train, solo_examples(solo), featurizer, base.network, base.training)
    heads = fit_heads(fold.train, solo, featurizer)
    left_out = replace(base.fitted_, model=fitted, heads=heads)
    return save(Predictor.of(left_out, "left-out", base.network, base.training), folder / fold.name)
