from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.features import RESOURCES
from models.prior import CONTENTION_FEATURES
from predictor.answering.explain import operators_wanting, sentence, shares_of
from predictor.examples.featurizer import Featurizer
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.synthetic import graph_source

JOB = Featurizer(graph_source).job(Workload("beta"), "v100")


@given(
    excess=st.floats(1e-3, 5),
    parts=st.lists(
        st.floats(0, 3), min_size=len(CONTENTION_FEATURES), max_size=len(CONTENTION_FEATURES)
    ).filter(lambda values: sum(values) > 1e-3),
)
def test_parts_sum_to_the_excess(excess: float, parts: list[float]) -> None:
    shares = shares_of(excess, np.array(parts), JOB)
    assert sum(s.excess for s in shares) == pytest.approx(excess)
    assert [s.excess for s in shares] == sorted((s.excess for s in shares), reverse=True)
    assert {s.resource for s in shares} <= set(RESOURCES)


def test_predicted_slowdown_is_explained(predictor: Predictor) -> None:
    """The parts in the sentence add up to the predicted slowdown, to the printed precision."""
    jobs = tuple(Workload(name, 32) for name in ("alpha", "beta", "gamma"))
    answer = predictor.predict(ColocationSet("v100", jobs))
    explained = 0
    for member, reason in zip(answer.members, answer.reasons[1:4], strict=True):
        if "x slowdown" in reason:
            explained += 1
            parts = re.findall(r" (\d+\.\d\d)(?=[ );])", reason.split(": ", 1)[1])
            assert sum(map(float, parts)) == pytest.approx(
                member.slowdown.value - 1, abs=0.01 * len(RESOURCES)
            )
    assert explained


@pytest.mark.parametrize("resource", RESOURCES)
def test_operators_are_ranked_shares(resource: str) -> None:
    wanting = operators_wanting(JOB, resource, most=99)
    assert sum(share for _, share in wanting) == pytest.approx(1)
    assert list(wanting) == sorted(wanting, key=lambda item: -item[1])
    assert {kind for kind, _ in wanting} <= {op.kind for op in JOB.graph.operators}
    assert operators_wanting(JOB, resource, most=1) == wanting[:1]


def test_sentence() -> None:
    parts = np.zeros(len(CONTENTION_FEATURES))
    parts[CONTENTION_FEATURES.index("memory_bandwidth_product")] = 3
    parts[CONTENTION_FEATURES.index("launch_product")] = 1
    text = sentence("beta", 1.4, shares_of(0.4, parts, JOB))
    assert "beta: 1.40x slowdown (1 alone + 0.30 for memory bandwidth + 0.10 for kernel launches)" in text
    assert sentence("beta", 1.001, []) == "beta runs as fast as alone"
