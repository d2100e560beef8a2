"""The baselines and the shipped checkpoint as contenders."""

from __future__ import annotations

from predictor.protocols.registry import Contender, FoldPredictor, register
from profiling.errors import CotenantError

_TOGETHER = ("throughput_ratio", "set_memory_bytes", "set_utilization_ratio")


def _shipped_version() -> str:
    from predictor import load_predictor

    try:
        return str(load_predictor("default").version)
    except CotenantError:
        return "none"


def _constant() -> FoldPredictor:
    from models.baselines import ConstantPredictor

    return ConstantPredictor()


def _additive() -> FoldPredictor:
    from models.baselines import AdditivePredictor

    return AdditivePredictor()


def _trees_identity() -> FoldPredictor:
    from models.baselines import TreePredictor

    return TreePredictor(solo=False)


def _trees_solo() -> FoldPredictor:
    from models.baselines import TreePredictor

    return TreePredictor(solo=True)


def _shipped() -> FoldPredictor:
    from predictor.protocols.shipped import ShippedPredictor

    return ShippedPredictor()


register(Contender("constant", _constant, seconds_per_fold=0.1))
register(Contender("additive", _additive, targets=_TOGETHER, uses_solo=True, seconds_per_fold=0.1))
register(Contender("trees-identity", _trees_identity, seconds_per_fold=2))
register(Contender("trees-solo", _trees_solo, targets=_TOGETHER, uses_solo=True, seconds_per_fold=3))
register(
    Contender(
        "shipped", _shipped, version=_shipped_version, targets=_TOGETHER, pretrained=True, seconds_per_fold=30
    )
)
