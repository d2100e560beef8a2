"""How busy jobs keep a device, after observations."""

from __future__ import annotations

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.learning.posterior import Posterior
from predictor.load import load_predictor
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, Workload
from tests.predictor.learning.test_posterior import JOBS, pairs_of


def test_a_job_alone_uses_all_that_its_device_is_used(predictor: Predictor) -> None:
    """Sets show that a job's steps are shorter than its graph says, so it keeps the device busy for more of them."""
    job, posterior = Workload("delta", 32), Posterior(predictor)
    for pair in (ColocationSet("v100", (job, Workload(name, 32))) for name in ("alpha", "beta", "gamma")):
        step_s = 0.6 * float(predictor.predict_arrays([pair]).step_time_s[0, 0])
        posterior.observe([Observation(pair, 0, step_s)] * 3)
    before, after = (p.predict(ColocationSet("v100", (job,))) for p in (predictor, posterior))
    assert after.members[0].utilization_ratio.value > before.members[0].utilization_ratio.value
    assert after.total_utilization_ratio.value == pytest.approx(after.members[0].utilization_ratio.value)
    assert after.total_utilization_ratio.upper <= 1


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_beside_others_a_step_keeps_the_device_busy_for_no_longer_than_alone(sharing: str) -> None:
    """Sets show that a job's steps are shorter than its graph says the device is busy for one."""
    predictor, job = load_predictor(), Workload("deepspeech2-librispeech")
    posterior, names = Posterior(predictor), ("resnet18-cifar", "lstm-wikitext2", "dcgan-64")
    pairs = [ColocationSet("v100", (job, Workload(name)), sharing) for name in names]
    for pair in pairs:
        step_s = 0.4 * float(predictor.predict_arrays([pair]).step_time_s[0, 0])
        posterior.observe([Observation(pair, 0, step_s)] * 3)
    alone = posterior.predict_arrays([ColocationSet("v100", (job,), sharing)])
    most_s = alone.utilization_ratio[0, 0] * alone.step_time_s[0, 0]
    together = posterior.predict_arrays(pairs)
    assert (together.utilization_ratio * together.step_time_s)[:, 0].max() <= most_s * (1 + 1e-9)
    for pair in pairs:
        member = posterior.predict(pair).members[0]
        assert member.utilization_ratio.value * member.step_time_s.value <= most_s * (1 + 1e-9)


def test_a_step_that_waits_longer_keeps_the_device_busy_for_as_long(predictor: Predictor) -> None:
    """Sets show that a job's step takes longer than its graph says; its work on the device stays the same."""
    jobs = [job.without_solo() for job in JOBS]
    posterior = Posterior(predictor)
    for pair in pairs_of(jobs)[:4]:
        step_s = 2.5 * float(predictor.predict_arrays([pair]).step_time_s[0, 0])
        posterior.observe([Observation(pair, 0, step_s)] * 3)
    asked = pairs_of(jobs)[0]
    before, after = (p.predict(asked) for p in (predictor, posterior))
    was, now = before.members[0], after.members[0]
    assert now.step_time_s.value > 2.0 * was.step_time_s.value
    busy_s = [m.utilization_ratio.value * m.step_time_s.value for m in (was, now)]
    assert busy_s[1] == pytest.approx(busy_s[0], rel=1e-6)
    together = sum(m.utilization_ratio.value for m in after.members)
    assert after.total_utilization_ratio.value <= together + 1e-9 < before.total_utilization_ratio.value
    arrays = posterior.predict_arrays([asked])
    np.testing.assert_allclose(
        # Both scale utilisations that add up to more than 1, before and after weighing the networks anew.
        arrays.utilization_ratio[0],
        [m.utilization_ratio.value for m in after.members],
        rtol=1e-3,
    )
