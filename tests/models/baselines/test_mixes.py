"""Regressions on the members of a mix."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from models.baselines.mixes import RidgeOfMixes
from profiling.errors import InputError

# Share of the card that each keeps busy.
BUSY = {f"net-{k}": 0.1 + 0.12 * k for k in range(6)}


def solo() -> pd.DataFrame:
    """On slices, the busier a job, the slower; the busiest does not fit on 2g."""
    rows = []
    for job, busy in BUSY.items():
        rows.append({"device": "a100", "workload": job, "step_time_s": np.nan, "utilization_ratio": busy})
        for size, share in (("7g", 1.0), ("3g", 3 / 7), ("2g", 2 / 7)):
            if (job, size) != ("net-5", "2g"):
                step = 0.01 * (1 + busy / share)
                rows.append({"device": f"a100:mig={size}", "workload": job, "step_time_s": step,
                             "utilization_ratio": np.nan})  # fmt: skip
    return pd.DataFrame(rows)


def mixes(without: str = "") -> Bundle:
    """Each member is slower by half of what its partners keep busy."""
    rows = [
        {"set_id": " + ".join(jobs), "member": member, "workload": job,
         "log_step_time_ratio": 0.5 * (sum(BUSY[j] for j in jobs) - BUSY[job])}
        for size in (2, 3) for jobs in combinations_with_replacement(BUSY, size) if without not in jobs
        for member, job in enumerate(jobs)
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    return Bundle("step_time_ratio", frame, frame.iloc[:0], {"solo": solo()})


@pytest.mark.parametrize("jobs", [True, False])
def test_learns_what_partners_cost(jobs: bool) -> None:
    bundle = mixes()
    fitted = RidgeOfMixes(jobs).fit(bundle)
    np.testing.assert_allclose(fitted.predict(bundle.without_targets()), bundle.y, rtol=0.03)
    with pytest.raises(InputError, match="nothing to learn"):
        RidgeOfMixes(jobs).fit(bundle.without_targets())


def test_a_new_job_is_predicted_from_its_runs_alone() -> None:
    """Even from those on larger slices, if it fits on no smaller one; by names alone, it counts as no partner."""
    train, test = mixes(without="net-5"), mixes()
    new = test.frame["set_id"].str.contains("net-5").to_numpy()
    by_runs, by_names = (
        RidgeOfMixes(jobs).fit(train).predict(test.without_targets()) for jobs in (False, True)
    )
    off = [np.abs(np.log(answers / test.y))[new].mean() for answers in (by_runs, by_names)]
    assert off[0] < 0.05 < off[1]


def test_answers_stay_within_what_was_learned() -> None:
    train = mixes()
    crowd = pd.DataFrame(
        {"set_id": "all", "member": range(6), "workload": list(BUSY)} | {"log_step_time_ratio": np.nan}
    )
    answers = (
        RidgeOfMixes(True).fit(train).predict(Bundle("step_time_ratio", crowd, crowd.iloc[:0], train.known))
    )
    assert answers.max() == pytest.approx(train.y.max())


def test_jobs_without_runs_alone_are_predicted_whatever_else_is_asked() -> None:
    bundle = mixes()
    known = bundle.known["solo"]
    without = Bundle(bundle.target, bundle.frame, bundle.solo, {"solo": known[known["workload"] != "net-5"]})
    fitted = RidgeOfMixes(False).fit(without)
    some = bundle.frame["set_id"].isin(["net-0 + net-5", "net-5 + net-5"])
    alone = fitted.predict(replace(without, frame=bundle.frame[some]))
    np.testing.assert_allclose(alone, fitted.predict(without)[some])
