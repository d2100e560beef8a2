from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from predictor.answering.transferred import transferred
from predictor.load import load_predictor
from predictor.predictor import Predictor
from profiling.devices import larger_slices, mig_layout
from profiling.workload import ColocationSet, SoloProfile, Workload

ZOO = ("lstm-wikitext2", "gpt-125m", "neumf-ml1m", "bert-base-squad")
JOBS = tuple(map(Workload, ZOO))
# Sums of 32-bit numbers in another order.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def shipped() -> Predictor:
    return load_predictor()


def smaller_and_larger(card: str) -> Iterator[tuple[str, str]]:
    layout = mig_layout(card)
    for profile in layout.profiles:
        for larger in larger_slices(layout.device(profile)):
            yield layout.device(profile), larger


@pytest.mark.parametrize("card", ["a100", "a100-80gb", "a30", "h100", "h200"])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("options", [{}, {"sm_share_ratio": 0.4}])
def test_no_step_is_longer_on_a_larger_slice(
    shipped: Predictor, card: str, count: int, options: dict[str, float]
) -> None:
    jobs = [replace(job, **options) if k % 2 else job for k, job in enumerate(JOBS)]  # type: ignore[arg-type]
    for sharing in ("time-slice", "mps"):
        step_s = {
            device: shipped.predict_arrays(
                [ColocationSet(device, some, sharing) for some in combinations(jobs, count)]
            ).step_time_s
            for device in (card, *(smaller for smaller, _ in smaller_and_larger(card)))
        }
        for smaller, larger in smaller_and_larger(card):
            assert (step_s[smaller] >= step_s[larger] * (1 - ROUNDING)).all(), (smaller, larger)


def test_steps_measured_on_the_whole_card_are_no_shorter_on_its_slices(shipped: Predictor) -> None:
    featurizer, step_s = shipped.fitted_.model.featurizer, {}
    measured = [replace(job, solo=SoloProfile(0.05, utilization_ratio=0.6)) for job in JOBS]
    for device in ("a100", *(smaller for smaller, _ in smaller_and_larger("a100"))):
        there = tuple(transferred(job, "a100", device, 1.0, featurizer) for job in measured)
        step_s[device] = shipped.predict_arrays([ColocationSet(device, there)]).step_time_s
    for smaller, larger in smaller_and_larger("a100"):
        assert (step_s[smaller] >= step_s[larger] * (1 - ROUNDING)).all(), (smaller, larger)


def test_sets_on_slices_and_cards_together_are_answered_as_one_by_one(shipped: Predictor) -> None:
    places = ("a100", "a100:mig=1g", "v100", "h100:mig=3g", "a100:mig=2g")
    sets = [ColocationSet(place, JOBS[: 1 + k % 4]) for k, place in enumerate(places)]
    together = shipped.predict_arrays(sets).step_time_s
    for one, found in zip(sets, together, strict=True):
        alone = shipped.predict_arrays([one]).step_time_s[0]
        np.testing.assert_allclose(found[: len(alone)], alone, rtol=ROUNDING)
        described = [m.step_time_s.value for m in shipped.predict(one).members]
        np.testing.assert_allclose(described, alone, rtol=ROUNDING)


def test_slices_that_are_no_smaller() -> None:
    assert larger_slices("a100") == larger_slices("v100") == ()
    assert larger_slices("a30:mig=1g") == ("a30:mig=2g", "a30:mig=4g", "a30")
    assert larger_slices("a100:mig=1g.10gb")[0] == "a100:mig=2g"
