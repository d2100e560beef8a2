"""Whole models from the measured times of their operators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from predictor.evaluation.protocols.published.neusight import by_kind
from predictor.evaluation.protocols.registry import contenders


def bundle() -> Bundle:
    """Two models on two devices; a step takes half as long again as its nodes on one, and twice on the other."""
    runs = [("v100", "one", 1.5), ("v100", "two", 1.5), ("a100", "one", 2.0), ("a100", "two", 2.0)]
    nodes, rows = [], []
    for number, (device, model, factor) in enumerate(runs):
        scale = 0.001 * (number + 1)
        key = {"device": device, "workload": model, "campaign": "neusight"}
        nodes += [
            key | {"forward_time_s": scale, "backward_time_s": 2 * scale, "occurrences": 12},
            key | {"forward_time_s": scale, "backward_time_s": 0.0, "occurrences": None},
        ]
        rows.append(key | {"set_id": str(number), "step_time_s": factor * (36 + 1) * scale})
    three = {"device": "a100", "workload": "three", "campaign": "neusight"}
    nodes.append(three | {"forward_time_s": None, "backward_time_s": None, "occurrences": 12})
    rows.append(three | {"set_id": "4", "step_time_s": 1.0})
    frame = pd.DataFrame(rows)
    return Bundle("solo_step_time_s", frame, frame.iloc[:0], {"graphs": pd.DataFrame(nodes)})


@pytest.mark.parametrize(
    ("name", "factors"), [("sum-of-nodes", [1.5, 1.5, 2.0, 2.0]), ("nodes-by-device", [1.0] * 4)]
)
def test_times_of_nodes_add_up(name: str, factors: list[float]) -> None:
    (contender,) = contenders([name])
    known = bundle()
    answers = contender.make().fit(known, 0).predict(known.without_targets())
    np.testing.assert_allclose(answers[:4], known.y[:4] / factors)
    assert np.isnan(answers[4]), "none of its nodes were timed"


def test_an_operators_kind_takes_the_place_of_the_architecture() -> None:
    frame = by_kind(pd.DataFrame({"kind": ["linear", "linear", "softmax"]}), {})
    assert frame["architecture"].tolist() == frame["family"].tolist() == ["linear", "linear", "softmax"]
    assert frame["set_id"].is_unique
