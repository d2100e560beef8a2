from __future__ import annotations

from predictor import load_predictor
from predictor.answering.never_measured import never_measured
from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from profiling.workload import ColocationSet, Workload

JOBS = [Workload.parse(spec) for spec in ("resnet18-cifar:batch_size=64", "lstm-wikitext2:mode=inference")]
SETS = [
    ColocationSet(device, tuple(jobs), sharing)
    for device, sharing in (("v100", "time-slice"), ("h100", "mps"), ("rtx-5090", "time-slice"), ("a100", "mig"))
    for jobs in (JOBS, JOBS[:1])
]  # fmt: skip


def test_it_is_what_predictions_say_without_making_them() -> None:
    predictor = load_predictor()
    said = [list(prediction.never_measured) for prediction in predictor.predict_many(SETS)]
    assert any(said)
    assert not all(said)
    assert predictor.never_measured(SETS) == said
    assert never_measured(predictor, SETS) == list(dict.fromkeys(reason for each in said for reason in each))
    assert Posterior(predictor).never_measured(SETS) == said


def test_what_was_observed_of_a_job_alone_was_measured() -> None:
    posterior = Posterior(load_predictor())
    alone = ColocationSet("rtx-5090", (JOBS[0],))
    assert posterior.never_measured([alone])[0]
    posterior.observe([Observation(alone, 0, 0.05)])
    assert posterior.never_measured([alone]) == [[]]
    assert not posterior.predict(alone).never_measured


def test_a_predictor_that_does_not_know_says_nothing() -> None:
    assert never_measured(object(), SETS) == []
