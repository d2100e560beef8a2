"""The learned cost model as a contender for single operators, fitted only to the fold's operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datasets.bundle import Bundle, Floats
from predictor.evaluation.protocols.registry import Contender, register
from profiling.errors import InputError

if TYPE_CHECKING:
    from models.cost import CostModel

# Most rows of one kind on one device: more add little, and the time of a fit grows with them.
MOST_OPERATORS = 400


class OperatorCostPredictor:
    """Latencies of single operators by a cost model fitted to the training rows."""

    def fit(self, train: Bundle, seed: int) -> OperatorCostPredictor:
        """Fit to the measured points of `train`.

        Raises:
            InputError: a device of the training rows is not in the catalogue.
        """
        from predictor.training.cost.examples import balanced
        from predictor.training.cost.fit import CostConfig, fit_cost
        from predictor.training.cost.operators import operator_examples, sample_operators

        rows = train.rows[train.points].assign(latency_s=train.y[train.points])
        examples = operator_examples(sample_operators(rows, MOST_OPERATORS, seed))
        if not examples:
            raise InputError("nothing to learn from", expected="operators with all dimensions", got="none")
        weighted = balanced(examples, lambda e: e.job.device.name)
        self.model_: CostModel = fit_cost(weighted, CostConfig(networks=1, seed=seed))
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN for a device outside the catalogue, or if a dimension is missing."""
        from models.cost.single_operators import operator_times

        return operator_times(self.model_, test.rows)[0]


register(
    Contender(
        "operator-cost-model",
        OperatorCostPredictor,
        version="4",
        targets=("latency_s",),
        partial=True,
        seconds_per_fold=120,
    )
)
