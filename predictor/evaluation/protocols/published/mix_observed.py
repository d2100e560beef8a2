"""Mixes observed at one share of the card and predicted at another."""

from __future__ import annotations

import numpy as np

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.published.mix_profiles import mix_features
from predictor.evaluation.protocols.registry import Contender, register

_PROTOCOLS = frozenset({"miso-other-share", "miso-other-share-by-model"})


class MixObserved:
    """Mean of extremely randomised and boosted trees, on the log ratio of steps at two shares.

    The ratio is that of the queried to the observed share. Features are those of `MixProfiles`, the member's
    observation, and the mean observation in its mix.
    """

    def fit(self, train: Bundle, seed: int = 0) -> MixObserved:
        """Learn from the measured points of `train`.

        Raises:
            InputError: no measured points.
        """
        from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor, VotingRegressor

        points = train.learned_points()
        trees = ExtraTreesRegressor(150, min_samples_leaf=2, max_features=0.5, random_state=seed, n_jobs=1)
        boosted = HistGradientBoostingRegressor(
            max_iter=400, learning_rate=0.05, max_leaf_nodes=15, random_state=seed
        )
        self.model_ = VotingRegressor([("trees", trees), ("boosted", boosted)])
        self.model_.fit(_features(train)[points], np.log(train.y[points]) - _observed(train)[points])
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] for `test.rows`."""
        return np.exp(_observed(test) + self.model_.predict(_features(test)))


def _observed(bundle: Bundle) -> Floats:
    return bundle.rows["observed_log_step_time_ratio"].to_numpy(dtype=np.float64)


def _features(bundle: Bundle) -> Floats:
    rows, observed = bundle.rows, _observed(bundle)
    mean = rows["observed_log_step_time_ratio"].groupby(rows["set_id"]).transform("mean")
    count = rows.groupby("set_id")["workload"].transform("size").to_numpy(dtype=np.float64)
    return np.column_stack([mix_features(bundle), observed, observed**2, observed * count, mean])


def _as_observed() -> FoldPredictor:
    from models.baselines.group_means import FormulaPredictor

    return FormulaPredictor(lambda bundle: np.exp(_observed(bundle)))


for _name, _make, _seconds in (("mix-observed", MixObserved, 15.0), ("as-observed", _as_observed, 0.05)):
    register(
        Contender(_name, _make, targets=("step_time_ratio",), protocols=_PROTOCOLS, seconds_per_fold=_seconds)
    )
