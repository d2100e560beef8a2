"""Single operators on held-out devices; and whole models, operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from datasets.bundle import Bundle, Floats
from models.baselines.contract import FoldPredictor
from predictor.evaluation.protocols.protocol import Protocol, Tables
from predictor.evaluation.protocols.published.steps import OF_STEPS, TARGETS
from predictor.evaluation.protocols.registry import Contender, register

if TYPE_CHECKING:
    import pandas as pd

OF_OPERATORS = (
    "constant",
    "operator-roofline",
    "operator-efficiency",
    "operator-trees",
    "operator-network",
    "operator-cost-model",
)
_OPERATORS = ("latency_s",)


def by_kind(frame: pd.DataFrame, _tables: Tables) -> pd.DataFrame:
    """Each row is a unit of its own, and its operator takes the place of the architecture."""
    number = np.arange(len(frame)).astype(str)
    return frame.assign(architecture=frame["kind"], family=frame["kind"], set_id=number)


def _roofline() -> FoldPredictor:
    from models.baselines.operator_efficiency import OperatorRoofline

    return OperatorRoofline()


def _efficiency() -> FoldPredictor:
    from models.baselines.operator_efficiency import OperatorEfficiency

    return OperatorEfficiency()


def _trees() -> FoldPredictor:
    from models.baselines.operator_regression import OperatorRegression, boosted_trees

    return OperatorRegression(boosted_trees)


def _network() -> FoldPredictor:
    from models.baselines.operator_regression import OperatorRegression, plain_network

    return OperatorRegression(plain_network)


def _sum_of_nodes(bundle: Bundle) -> Floats:
    """[n] measured times of the nodes of each run, times how often the model runs them.

    NaN if none were timed.
    """
    nodes = bundle.known["graphs"]
    times = (nodes["forward_time_s"] + nodes["backward_time_s"]) * nodes["occurrences"].fillna(1).astype(
        float
    )
    key = ["device", "workload", "campaign"]
    total = times.groupby([nodes[name] for name in key]).sum(min_count=1).rename("total").reset_index()
    totals: Floats = bundle.rows[key].merge(total, on=key, how="left")["total"].to_numpy(dtype=np.float64)
    return totals


def _nodes() -> FoldPredictor:
    from models.baselines.group_means import FormulaPredictor

    return FormulaPredictor(_sum_of_nodes)


def _nodes_by_device() -> FoldPredictor:
    from models.baselines.group_means import GroupMeanPredictor

    return GroupMeanPredictor(("device",), _sum_of_nodes, geometric=True)


def _nodes_and_cost() -> FoldPredictor:
    from models.baselines.averaged import AveragedPredictor
    from predictor.evaluation.protocols.published.cost_model import CostModelPredictor

    return AveragedPredictor((_nodes_by_device(), CostModelPredictor(networks=3)))


register(Contender("operator-roofline", _roofline, targets=_OPERATORS, partial=True, seconds_per_fold=0.5))
register(Contender("operator-efficiency", _efficiency, targets=_OPERATORS, partial=True, seconds_per_fold=3))
register(Contender("operator-trees", _trees, targets=_OPERATORS, partial=True, seconds_per_fold=5))
register(Contender("operator-network", _network, targets=_OPERATORS, partial=True, seconds_per_fold=25))
for _name, _make, _seconds in (
    ("sum-of-nodes", _nodes, 0.05),
    ("nodes-by-device", _nodes_by_device, 0.05),
    ("nodes-and-cost", _nodes_and_cost, 2),
):
    register(
        Contender(
            _name,
            _make,
            targets=TARGETS,
            protocols=frozenset({"neusight-end-to-end"}),
            partial=True,
            seconds_per_fold=_seconds,
        )
    )

PROTOCOLS = (
    Protocol(
        "neusight-operators-by-device",
        "one forward operator in fp32 on a device never seen",
        ("neusight",),
        "by-device",
        target="latency_s",
        choose=by_kind,
        unit="device",
        contenders=OF_OPERATORS,
        by=("architecture", "device", "campaign"),
    ),
    Protocol(
        "neusight-end-to-end",
        "step of BERT, GPT-2 and Switch, a model never seen; its operators' times are given",
        ("neusight",),
        "by-model",
        target="solo_step_time_s",
        unit="architecture",
        known=("operators", "graphs", "workloads"),
        contenders=(*OF_STEPS, "sum-of-nodes", "nodes-by-device", "nodes-and-cost"),
        by=("architecture", "device", "mode", "compiler"),
    ),
)
