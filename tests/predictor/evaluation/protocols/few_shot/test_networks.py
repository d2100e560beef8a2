"""Few-shot learners that start from a network fitted to a fold's training sets."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from predictor.config import TrainingConfig
from predictor.evaluation.protocols.few_shot import neural_process
from predictor.evaluation.protocols.few_shot.learners import Fold
from predictor.evaluation.protocols.few_shot.networks import WITH_NETWORK, learners_of
from predictor.evaluation.protocols.few_shot.neural_process import NeuralProcessConfig
from predictor.evaluation.protocols.few_shot.runner import resident_sets
from predictor.examples.cross_fit import architecture_groups, cross_fit
from predictor.examples.featurizer import Featurizer
from tests.predictor.synthetic import MODELS, graph_source, tables


def test_the_network_never_saw_the_left_out_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural_process, "NeuralProcessConfig", partial(NeuralProcessConfig, episodes=2))
    fitted = []
    # `predictor.training.fit` imports `networks.fit` by name: first imported below, it would keep the replacement.
    import predictor.training.fit  # noqa: F401
    from predictor.training import networks

    def noted(examples, solo, *arguments):  # type: ignore[no-untyped-def]
        fitted.append((set(examples.architectures), {w.model for w in solo.workloads}))
        return fit(examples, solo, *arguments)

    fit = networks.fit
    monkeypatch.setattr(networks, "fit", noted)
    colocation, solo = tables()
    featurizer = Featurizer(graph_source)
    quick = TrainingConfig(
        encoder_steps=2, epochs=2, mixed_sets=0, shared_sets=0, inferred_sets=0, teacher_trees=2
    )
    made = learners_of({"solo": solo}, featurizer, quick)
    examples = resident_sets(colocation, solo, tuple(set(colocation.campaign)))
    (group, *_) = architecture_groups(examples)
    (fold,) = cross_fit(examples, [group], lambda f: Fold.of(f.train, f.test, featurizer))
    learners = made(fold)
    assert tuple(learners) == WITH_NETWORK
    ((sets, alone),) = fitted
    assert sets == alone == set(MODELS) - group.architectures
    nothing = np.zeros(0, np.int64)
    expected = [learners[name].answer(nothing).log_ratio for name in ("posterior", "process")]
    both = learners["posterior-and-process"].answer(nothing).log_ratio
    np.testing.assert_allclose(both, np.mean(expected, 0))
