from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.features import RESOURCES
from models.prior import CONTENTION_FEATURES
from predictor.explain import operators_wanting, sentence, shares_of
from predictor.featurizer import Featurizer
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
    one = ColocationSet("v100", (Workload("alpha", 32), Workload("beta", 32), Workload("gamma", 32)))
    answer = predictor.predict(one)
    slowdown = np.array([m.slowdown.value for m in answer.members])
    for value, shares in zip(
        slowdown, predictor._shares(one, predictor.rows([one])[0], slowdown), strict=True
    ):
        assert sum(s.excess for s in shares) == pytest.approx(value - 1)
        for share in shares:
            assert all(0 < part <= 1 for _, part in share.operators)
    assert any(r.startswith(("alpha takes", "alpha runs")) for r in answer.reasons)


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
    assert "beta takes 1.40 times its step time: memory bandwidth 0.30 + kernel launches 0.10" in text
    assert sentence("beta", 1.001, []) == "beta runs at its own speed"
