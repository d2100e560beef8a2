"""The learners that take part in few-shot protocols."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.features import Floats
from predictor.evaluation.protocols.few_shot.learners import (
    Factorisation,
    FactorPerJob,
    FewShotLearner,
    Fold,
    RefittedTrees,
    Ridge,
    Uncorrected,
)
from predictor.evaluation.protocols.few_shot.neural_process import NeuralProcessLearner
from predictor.evaluation.protocols.few_shot.processes import ProcessLearner

LEARNERS = ("process", "uncorrected", "factor-per-job", "ridge", "als", "trees", "neural-process")
LearnerFactory = Callable[[Fold], dict[str, FewShotLearner]]


def learners(fold: Fold, prior: Floats | None = None) -> dict[str, FewShotLearner]:
    """All learners, fitted on the fold's training rows.

    Corrections start from the process's prediction without observations.

    Args:
        fold: the rows.
        prior: [train rows + test rows] log slowdowns predicted without having learned from the row; None: a
            constant.
    """
    process = ProcessLearner(fold, prior)
    base = process.answer(np.zeros(0, np.int64)).log_ratio
    all_of_them: tuple[FewShotLearner, ...] = (
        process,
        Uncorrected(fold, base),
        FactorPerJob(fold, base),
        Ridge(fold, base),
        Factorisation(fold),
        RefittedTrees(fold, prior),
        NeuralProcessLearner(fold, prior),
    )
    return dict(zip(LEARNERS, all_of_them, strict=True))
