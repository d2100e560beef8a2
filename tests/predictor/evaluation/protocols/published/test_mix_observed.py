"""Mixes observed at half of the card, predicted on the whole."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from predictor.evaluation.protocols.published.mix_observed import MixObserved
from predictor.evaluation.protocols.registry import contenders
from profiling.errors import InputError

ASKED = {f"net-{k}": 0.1 + 0.15 * k for k in range(6)}


@pytest.fixture(autouse=True)
def without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "predictor.evaluation.protocols.published.mix_profiles._cost", lambda *_: (np.nan,) * 7
    )


def bundle() -> Bundle:
    """On the whole card, the ratio is the square of that at half of it (twice, in logarithms)."""
    solo = pd.DataFrame(
        {"device": f"a100:mig={size}", "workload": job, "step_time_s": 0.01 * (1 + asked / share),
         "utilization_ratio": asked, "memory_bandwidth_ratio": 0.1}
        for job, asked in ASKED.items() for size, share in (("7g", 1.0), ("3g", 3 / 7))
    )  # fmt: skip
    rows = []
    for jobs in product(ASKED, repeat=2):
        for member, job in enumerate(jobs):
            observed = 0.3 * ASKED[job] + 0.2 * ASKED[jobs[1 - member]]
            rows.append({"set_id": " + ".join(jobs), "member": member, "workload": job,
                         "observed_log_step_time_ratio": observed, "log_step_time_ratio": 2.0 * observed})  # fmt: skip
    frame = pd.DataFrame(rows)
    return Bundle("step_time_ratio", frame, frame.iloc[:0], {"solo": solo})


def test_what_was_observed_is_corrected_for_the_share() -> None:
    known = bundle()
    (plain,) = contenders(["as-observed"])
    observed = plain.make().fit(known, 0).predict(known.without_targets())
    np.testing.assert_allclose(observed**2, known.y)
    half = known.frame["set_id"].isin(known.frame["set_id"].unique()[::2]).to_numpy()
    train, test = (
        Bundle("step_time_ratio", known.frame[side], known.solo, known.known) for side in (half, ~half)
    )
    answers = MixObserved().fit(train).predict(test.without_targets())
    error, as_is = (np.abs(a / test.y - 1).mean() for a in (answers, observed[~half]))
    assert error < 0.2 * as_is
    with pytest.raises(InputError, match="nothing to learn"):
        MixObserved().fit(train.without_targets())
