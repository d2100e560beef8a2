"""Times of single operators by regressions that nothing bounds: trees, or a plain network."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from datasets.bundle import Bundle, Floats
from models.baselines.operator_work import LAUNCH_S, operator_roofline_s, operator_work
from profiling.devices import get_device
from profiling.errors import InputError, UnknownNameError

_SIZES = ("b", "m", "n", "k", "input_channels", "output_channels", "kernel_size", "input_size", "stride")
# Side of the output tile of one block in large matrix products.
_TILE = 128


def boosted_trees(seed: int) -> Any:
    """Gradient-boosted trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(max_iter=300, random_state=seed)


def plain_network(seed: int) -> Any:
    """Two hidden layers, as wide as the cost model's; 60 passes over the rows."""
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    network = MLPRegressor(
        hidden_layer_sizes=(96, 96),
        learning_rate_init=3e-3,
        batch_size=1024,
        max_iter=60,
        random_state=seed,
    )
    return make_pipeline(StandardScaler(), network)


class OperatorRegression:
    """One regression per kind for the log of measured time / roofline.

    Inputs are an operator's sizes, work, roofline and waves. The data sheet enters by the latter two only: with its
    figures as further inputs, a network was 23 to 152 % off on a device left out.

    Args:
        make: makes an estimator of scikit-learn from a seed.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def fit(self, train: Bundle, seed: int = 0) -> OperatorRegression:
        """Learn from the measured points of `train` on devices of the catalogue.

        Raises:
            InputError: no such points.
        """
        features, roofline_s = _features(train.rows)
        usable = train.points & np.isfinite(roofline_s)
        if not usable.any():
            raise InputError(
                "nothing to learn from", expected="operators on devices of the catalogue", got="none"
            )
        kinds = train.rows["kind"].to_numpy(dtype=object)
        self.parts_ = {}
        for kind in sorted(set(kinds[usable])):
            chosen = usable & (kinds == kind)
            known = np.isfinite(features[chosen]).all(0)
            target = np.log(train.y[chosen] / roofline_s[chosen])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the network ends after its passes, converged or not
                self.parts_[kind] = known, self.make(seed).fit(features[chosen][:, known], target)
        return self

    def predict(self, test: Bundle) -> Floats:
        """[n] seconds; NaN for a device outside the catalogue or a kind never seen."""
        features, roofline_s = _features(test.rows)
        kinds = test.rows["kind"].to_numpy(dtype=object)
        result = np.full(len(kinds), np.nan)
        for kind, (known, estimator) in self.parts_.items():
            chosen = (kinds == kind) & np.isfinite(roofline_s) & np.isfinite(features[:, known]).all(1)
            if chosen.any():
                ratio = np.exp(estimator.predict(features[chosen][:, known]))
                result[chosen] = ratio * roofline_s[chosen]
        return result


def _features(rows: pd.DataFrame) -> tuple[Floats, Floats]:
    """[n, F] inputs, NaN where a kind has no such size, and [n] seconds by the roofline with a launch."""
    flops, moved = operator_work(rows)
    roofline_s = operator_roofline_s(rows) + LAUNCH_S
    units = rows["device"].map({name: _sm_count(name) for name in set(rows["device"])})
    sizes = {name: rows[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in _SIZES}
    is_convolution = rows["kind"].to_numpy(dtype=object) == "convolution"
    # The output of a convolution is one matrix of positions by channels.
    batch = np.where(is_convolution, 1.0, sizes["b"])
    side = np.floor(sizes["input_size"] / sizes["stride"])
    high = np.where(is_convolution, sizes["b"] * side**2, sizes["m"])
    wide = np.where(is_convolution, sizes["output_channels"], sizes["n"])
    waves = batch * np.ceil(high / _TILE) * np.ceil(wide / _TILE) / units.to_numpy(dtype=np.float64)
    operands = rows["operand_count"].to_numpy(dtype=np.float64, na_value=np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.array([*sizes.values(), flops, moved, flops / moved, waves, roofline_s]))
    return np.array([*logs, waves / np.ceil(waves), operands]).T, roofline_s


def _sm_count(device: str) -> float:
    try:
        return float(get_device(device).sm_count)
    except UnknownNameError:
        return np.nan
