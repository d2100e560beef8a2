"""The Gaussian process of `predictor.gaussian_process` around a constant as a contender.

It is fitted to the training side; nothing is observed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle
from predictor.evaluation.protocols.registry import Contender, register


class ProcessContender:
    """The process's expectation, given the training sets, for sets with a model that it has never seen."""

    def fit(self, train: Bundle, seed: int = 0) -> ProcessContender:
        """Keep the training side: the process numbers the members of both sides together."""
        del seed
        self.train_ = train
        return self

    def predict(self, test: Bundle) -> NDArray[np.float64]:
        """[n] for `test.rows`."""
        from predictor.evaluation.protocols.few_shot.learners import Fold
        from predictor.evaluation.protocols.few_shot.processes import ProcessLearner
        from predictor.examples.examples import examples_of, in_order_of
        from predictor.examples.featurizer import shared_featurizer

        train = examples_of(self.train_.colocation, self.train_.solo)
        resident = [s for s, there in zip(train.set_ids, train.resident, strict=True) if there]
        examples = examples_of(test.colocation, test.solo)
        learner = ProcessLearner(Fold.of(train.subset(resident), examples, shared_featurizer()))
        return in_order_of(test.colocation, np.exp(learner.answer(np.zeros(0, np.int64)).log_ratio))


register(
    Contender("process", ProcessContender, targets=("throughput_ratio",), uses_solo=True, seconds_per_fold=15)
)
