"""Jobs of which another batch size or frozen prefix was observed alone are predicted beside others as told of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from predictor.examples.observations import Observation
from predictor.learning.answers.related_alone import _GRID
from predictor.learning.posterior import Posterior
from predictor.predictor import Predictor
from profiling.workload import ColocationSet, SoloProfile, Workload

OBSERVED, OTHER = Workload("alpha", 32), Workload("beta", 16)
RELATED = (
    Workload("alpha", 64),
    Workload("alpha", 32, frozen_prefix=1),
    Workload("alpha", 32, sm_share_ratio=0.5),
)


def after(predictor: Predictor, utilization_ratio: float | None = None) -> Posterior:
    posterior, alone = Posterior(predictor), ColocationSet("v100", (OBSERVED,))
    step_s = 2.0 * float(predictor.predict_arrays([alone]).step_time_s[0, 0])
    posterior.observe([Observation(alone, 0, step_s, utilization_ratio=utilization_ratio)])
    return posterior


def rounded(value: float) -> float:
    return _GRID * round(value / _GRID)


@pytest.mark.parametrize("related", RELATED)
@pytest.mark.parametrize("utilization_ratio", [None, 0.3])
def test_they_are_as_slow_beside_others_as_with_what_follows_stated(
    predictor: Predictor, related: Workload, utilization_ratio: float | None
) -> None:
    posterior, asked = after(predictor, utilization_ratio), ColocationSet("v100", (related, OTHER))
    answer = posterior.predict_arrays([asked])
    step_s = math.exp(rounded(math.log(answer.solo_step_time_s[0, 0])))
    busy = None
    if utilization_ratio is not None:
        job = predictor.fitted_.model.featurizer.job
        told = posterior.told("v100", "time-slice", OBSERVED).solo.step_time_s
        assert told is not None
        longer = job(related, "v100").cost.busy_s / job(OBSERVED, "v100").cost.busy_s
        busy = min(rounded(utilization_ratio * told * longer / step_s), 1.0)
    stated = replace(related, solo=SoloProfile(step_time_s=step_s, utilization_ratio=busy))
    as_stated = posterior.predict_arrays([replace(asked, workloads=(stated, OTHER))])
    of_rows = posterior.predict_rows(posterior.rows([asked]), "time-slice")
    members = posterior.predict(asked).members
    for slowdown in (answer.slowdown[0], of_rows.slowdown[0], [m.slowdown.value for m in members]):
        np.testing.assert_allclose(slowdown, as_stated.slowdown[0], rtol=1e-6)
    np.testing.assert_allclose([m.step_time_s.value for m in members], answer.step_time_s[0], rtol=1e-6)


def test_a_job_that_was_observed_beside_others_is_answered_as_observed(predictor: Predictor) -> None:
    posterior, asked = after(predictor, 0.3), ColocationSet("v100", (RELATED[0], OTHER))
    step_s = 1.3 * float(posterior.predict_arrays([asked]).step_time_s[0, 0])
    posterior.observe([Observation(asked, 0, step_s)] * 3)
    assert posterior.predict_arrays([asked]).step_time_s[0, 0] == pytest.approx(step_s, rel=0.05)


def test_how_wide_the_interval_of_the_solo_step_time_is_stays(predictor: Predictor) -> None:
    posterior = after(predictor)
    beside, alone = (
        posterior.predict(ColocationSet("v100", jobs)).members[0]
        for jobs in ((RELATED[0], OTHER), RELATED[:1])
    )
    assert beside.solo_step_time_s == alone.solo_step_time_s
    assert beside.step_time_s.upper / beside.step_time_s.value > 1.01


def test_of_many_sets_in_rows_they_are_encoded_together(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior, asked = after(predictor), [ColocationSet("v100", (related, OTHER)) for related in RELATED]
    rows, table, calls = posterior.rows(asked), predictor.table_, list[set[Workload]]()
    encode = table.rows

    def counted(jobs: list[tuple[Workload, str, str]]) -> list[int]:
        calls.append({w.without_solo() for w, *_ in jobs if w.solo.step_time_s is not None})
        return encode(jobs)

    monkeypatch.setattr(table, "rows", counted)
    of_rows = posterior.predict_rows(rows, "time-slice")
    assert set(RELATED) in calls
    np.testing.assert_allclose(of_rows.slowdown, posterior.predict_arrays(asked).slowdown, rtol=1e-6)
