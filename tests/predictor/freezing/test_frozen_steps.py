"""The parts of a step on one GPU."""

from dataclasses import replace

import pytest

from predictor.examples.featurizer import Featurizer, JobOnDevice
from predictor.freezing.frozen_steps import FrozenSteps
from predictor.freezing.layer_times import layer_times
from profiling.workload import Workload
from tests.predictor.freezing.graphs import graph

JOB = Workload("synthetic", batch_size=32)


def test_parts_add_up_to_the_stretched_step_of_the_cost_model() -> None:
    made = graph()
    featurizer = Featurizer(lambda _: made)

    def job(prefix: int) -> JobOnDevice:
        return featurizer.job(replace(JOB, frozen_prefix=prefix), "v100")

    steps = FrozenSteps.of(job, layer_times(made, job(0).device, JOB), 2.0)
    for prefix in (0, 3, 6):
        parts = steps.parts(prefix)
        assert parts.step_time_s == pytest.approx(2.0 * job(prefix).cost.step_time_s)
        assert min(parts) >= 0.0
    # A cache takes the place of the frozen layers' forward pass, and changes nothing else.
    plain, cached = steps.parts(3), steps.parts(3, 1e18)
    assert cached.forward_s < plain.forward_s
    assert cached._replace(forward_s=plain.forward_s) == plain
