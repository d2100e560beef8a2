"""The baselines and the shipped checkpoint as contenders."""

from __future__ import annotations

from datasets.targets import TARGETS
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.registry import Contender, register
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

    return AdditivePredictor(_utilization_ratio)


def _utilization_ratio(spec: str, device: str, step_time_s: float) -> float:
    """Share of a step (0 to 1) in which the device is busy by the cost model, if no utilisation was measured.

    Args:
        spec, device: the job and where it runs.
        step_time_s: solo step time; if it is 0 or NaN, the cost model's is used.
    """
    from predictor.examples.featurizer import shared_featurizer
    from profiling.workload import Workload

    demand = shared_featurizer().job(Workload.parse(spec), device).demand
    return min(1.0, demand.busy_s / (step_time_s if step_time_s > 0 else demand.step_s))


def _trees_identity() -> FoldPredictor:
    from models.baselines import TreePredictor

    return TreePredictor(solo=False)


def _trees_solo() -> FoldPredictor:
    from models.baselines import TreePredictor

    return TreePredictor(solo=True)


def _shipped() -> FoldPredictor:
    from predictor.evaluation.protocols.shipped import ShippedPredictor

    return ShippedPredictor()


register(Contender("constant", _constant, targets=tuple(TARGETS), seconds_per_fold=0.1))
register(
    Contender("additive", _additive, version="2", targets=_TOGETHER, uses_solo=True, seconds_per_fold=0.1)
)
register(Contender("trees-identity", _trees_identity, seconds_per_fold=2))
register(Contender("trees-solo", _trees_solo, targets=_TOGETHER, uses_solo=True, seconds_per_fold=3))
register(
    Contender(
        "shipped", _shipped, version=_shipped_version, targets=_TOGETHER, pretrained=True, seconds_per_fold=30
    )
)
