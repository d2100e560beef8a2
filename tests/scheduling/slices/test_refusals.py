"""Jobs and cards that a slice policy cannot take are refused before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from predictor.types import PredictionArrays
from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.core.job import TraceJob
from scheduling.slices.best_static import best_static
from scheduling.slices.cluster import SlicePolicy
from scheduling.slices.policies import SLICE_POLICIES, get_slice_policy
from scheduling.slices.simulate import SliceResult, simulate_slices

JOB = TraceJob("0", Workload("bound"), 1.0)


class Unasked:
    """A predictor of a simulation that is refused before it starts."""

    def predict_arrays(self, sets: object) -> PredictionArrays:
        raise AssertionError("nothing may run")


@pytest.mark.parametrize("policy", SLICE_POLICIES)
def test_gangs_are_refused_before_anything_runs(policy: str) -> None:
    jobs = [JOB, replace(JOB, id="wide", gpus=4)]
    message = (
        f"{policy} .*expected jobs of one GPU, got 1 of 2 jobs with more, such as wide with 4.*isacpp-gangs"
    )
    with pytest.raises(InputError, match=message):
        simulate_slices(jobs, ["a100"], get_slice_policy(policy), Unasked(), Unasked())


@pytest.mark.parametrize(
    ("policy", "cards", "message"),
    [
        (
            "static-mig",
            ["a100", "v100"],
            "static-mig .*expected whole cards with MIG.*got v100.*isacpp-slices",
        ),
        ("static-mig", ["a100:mig=3g"], "expected whole cards with MIG.*got a100:mig=3g.*isacpp-slices"),
        (
            "static-mig",
            ["a100", "a30"],
            r"a30 does not .*expected slices of one of .*got 3g\+2g\+2g.*isacpp-slices",
        ),
        ("static-mig:9g", ["a100"], r"a100 does not .*expected slices of one of .*4g\+3g.*got 9g"),
        ("miso", ["a100", "a30"], "miso .*expected cards such as a100.*got a30.*isacpp-slices"),
        ("oracle", ["a30"], "oracle .*expected cards such as a100.*got a30.*isacpp-slices"),
    ],
)
def test_cards_that_a_policy_cannot_take(policy: str, cards: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate_slices([JOB], cards, get_slice_policy(policy), Unasked(), Unasked())


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        (["a100", "v100"], "expected cards of one type, got a100, v100.*isacpp-slices"),
        (["v100"], "expected whole cards with MIG.*got v100.*isacpp-slices"),
    ],
)
def test_cards_without_a_best_partition(cards: list[str], message: str) -> None:
    def never(policy: SlicePolicy) -> SliceResult:
        raise AssertionError("nothing may run")

    with pytest.raises(InputError, match=message):
        best_static(cards, never)
