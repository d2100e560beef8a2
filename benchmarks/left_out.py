"""Predictors trained without the pairs, or the models, that they predict: one per fold of a split, behind one
interface; the shipped predictor with a cost model that has not learned from what it predicts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.types import PredictionArrays, SetPredictor
from profiling.workload import ColocationSet

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from datasets.splits import Fold
    from predictor.examples.cross_fit import ExampleFold
    from predictor.predictor import Predictor


class LeftOut:
    """Predict each member of a set with a predictor that was fitted without it.

    Args:
        predictors: one per fold.
        folds: for each member of a set, the number of the predictor.
    """

    def __init__(
        self, predictors: Sequence[SetPredictor], folds: Callable[[ColocationSet], Sequence[int]]
    ) -> None:
        self.predictors, self.folds = predictors, folds

    def predict_arrays(self, sets: Sequence[ColocationSet]) -> PredictionArrays:
        """See `SetPredictor`. What is one number for a set is that of the first member's predictor."""
        answers = [predictor.predict_arrays(sets) for predictor in self.predictors]
        fold = np.zeros(answers[0].mask.shape, int)
        for row, s in enumerate(sets):
            fold[row, : len(s.workloads)] = self.folds(s)
        chosen: dict[str, Any] = {}
        for f in fields(PredictionArrays):
            stacked = np.stack([getattr(a, f.name) for a in answers])
            one_per_set = stacked.ndim == 2
            place = fold[:, 0] if one_per_set else fold
            chosen[f.name] = np.take_along_axis(stacked, place[None], axis=0)[0]
        return PredictionArrays(**chosen)


def without_pair(fold_of: Mapping[tuple[str, ...], int]) -> Callable[[ColocationSet], Sequence[int]]:
    """Numbers for `LeftOut`, by sorted architectures of a set; sets in no fold were seen by no predictor."""
    return lambda s: [fold_of.get(tuple(sorted(w.model for w in s.workloads)), 0)] * len(s.workloads)


def without_model(models: Sequence[str]) -> Callable[[ColocationSet], Sequence[int]]:
    """Numbers for `LeftOut`, by each member's own model."""
    return lambda s: [models.index(w.model) for w in s.workloads]


def left_out_predictor(model: str, data: Path, folds: int, pool: Executor) -> LeftOut:
    """Fit `model`'s configuration `folds` times on `data` and the bundled measurements, leaving out pairs in
    turn."""
    from datasets.splits import make_split

    colocation, solo = _tables(data)
    split = make_split(colocation, "by-pair", 0, folds)
    names = colocation.groupby("set_id")["architecture"].agg(lambda a: tuple(sorted(a)))
    fold_of = {names[set_id]: number for number, fold in enumerate(split) for set_id in fold.test_set_ids}
    return LeftOut(_fitted(model, colocation, solo, split, pool), without_pair(fold_of))


def new_models_predictor(model: str, data: Path, pool: Executor) -> LeftOut:
    """Fit `model`'s configuration on `data` and the bundled measurements, leaving out each model of `data` in
    turn, in sets and alone."""
    from datasets.splits import make_split
    from datasets.tables import read_table

    colocation, solo = _tables(data)
    models = set(read_table(data, "colocation")["architecture"])
    split = [fold for fold in make_split(colocation, "by-model") if fold.name in models]
    predictors = _fitted(model, colocation, solo, split, pool)
    return LeftOut(predictors, without_model([fold.name for fold in split]))


def add_cost_model(parser: ArgumentParser) -> None:
    """Add `--cost-model`, the argument of `with_cost_model`."""
    parser.add_argument(
        "--cost-model",
        type=Path,
        help="folder of coefficients to use instead of the shipped ones, such as those of "
        "`python -m predictor.training.cost --without miso --out DIR`",
    )


def with_cost_model(coefficients: Path | None) -> Predictor:
    """The shipped predictor, with the coefficients in a folder instead of its own if one is given."""
    from predictor import load_predictor
    from predictor.fitted.checkpoint import COST
    from predictor.load import PACKAGED

    if coefficients is None:
        return load_predictor()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = shutil.copytree(PACKAGED / "default", Path(folder) / "checkpoint")
        shutil.copytree(coefficients, checkpoint / COST, dirs_exist_ok=True)
        return load_predictor(checkpoint)


def _fitted(
    model: str, colocation: Any, solo: Any, split: Sequence[Fold], pool: Executor
) -> list[SetPredictor]:
    """One predictor for each fold of a split of set ids."""
    from predictor import load_predictor
    from predictor.examples.cross_fit import cross_fit, fold_groups
    from predictor.examples.examples import examples_of

    print(f"fitting {len(split)} predictors, each without the sets that it will predict", flush=True)
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

    Solo measurements are known of all jobs but those of models that are left out altogether. The intervals
    and domain of `model` are kept, because no policy reads them.
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
