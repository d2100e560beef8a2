"""MISO's mixes as sets, with synthetic rows of its jobs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

from datasets.bundle import Bundle
from predictor.evaluation.protocols.few_shot import mixes as mixes_module
from predictor.evaluation.protocols.few_shot.mixes import learners_of, mixes_as_sets
from predictor.evaluation.protocols.published import mix_sharing
from profiling.errors import InputError

ONE, OTHER = (
    f"keras-{name}:batch_size=64,precision=tf32,framework=tensorflow,optimizer=adam"
    for name in ("mobilenetv2-cifar", "resnet50-cifar")
)


def solo() -> pd.DataFrame:
    """Three times as slow on the smallest slice, and twice; the second job was not measured on 1g."""
    steps = {ONE: {"7g": 0.1, "1g": 0.3}, OTHER: {"7g": 0.2, "2g": 0.4}}
    rows = [
        {"device": f"a100:mig={size}", "workload": job, "step_time_s": step}
        for job, times in steps.items()
        for size, step in times.items()
    ]
    rows += [{"device": "a100", "workload": ONE, "utilization_ratio": 0.8, "memory_bandwidth_ratio": 0.2}]
    frame = pd.DataFrame(rows).reindex(
        columns=["device", "workload", "step_time_s", "utilization_ratio", "memory_bandwidth_ratio"]
    )
    return frame.assign(campaign="miso", memory_bytes=np.nan, gpus=1)


def mixes() -> pd.DataFrame:
    """The same two jobs twice, and one job alone; at half of the card and on the whole."""
    rows = []
    for number, (jobs, log_ratio) in enumerate((((ONE, OTHER), -0.4), ((OTHER, ONE), -0.6), ((ONE,), -1.0))):
        for member, job in enumerate(jobs):
            for share in (0.5, 1.0):
                rows.append(
                    {
                        "set_id": f"miso/{number}", "member": member, "device": "a100", "sharing": "mps", "workload": job,
                        "architecture": job.partition(":")[0], "numerator_sm_share_ratio": share,
                        "denominator_sm_share_ratio": 0.14, "log_step_time_ratio": log_ratio * share, "campaign": "miso",
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_share_ratios_become_slowdowns_relative_to_the_small_share() -> None:
    examples = mixes_as_sets({"mixes": mixes(), "solo": solo()})
    assert len(examples.set_ids) == 1, "repeats are one set, a job alone is none"
    slower = [3.0 if w.model == "keras-mobilenetv2-cifar" else 2.0 for w in examples.workloads]
    np.testing.assert_allclose(1 / examples.ratio, np.exp(-0.5) * np.array(slower))
    known = {w.model: w.solo for w in examples.workloads}
    assert known["keras-mobilenetv2-cifar"].step_time_s == 0.1
    assert known["keras-mobilenetv2-cifar"].utilization_ratio == 0.8
    assert known["keras-resnet50-cifar"].utilization_ratio is None


def test_tables_without_mixes_are_refused() -> None:
    with pytest.raises(InputError, match="mixes"):
        mixes_as_sets({"solo": solo()})


class _Remembered:
    """In place of `MixSharing`: knows each log ratio, and which networks it was fitted to."""

    log_ratio: ClassVar[dict[tuple[str, str], float]]
    sides: ClassVar[list[tuple[set[str], set[str]]]]

    def fit(self, train: Bundle) -> _Remembered:
        self.seen = set(train.rows["workload"])
        return self

    def predict(self, test: Bundle) -> np.ndarray:
        self.sides.append((self.seen, set(test.rows["workload"])))
        keys = zip(test.rows["set_id"], test.rows["workload"], strict=True)
        return np.exp([self.log_ratio[key] for key in keys])


def test_the_prior_is_the_slowdown_by_a_fit_without_the_rows_network(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("mobilenetv2-cifar", "resnet50-cifar", "lstm-imdb", "transformer-imdb")
    jobs = [ONE.replace("mobilenetv2-cifar", name) for name in names]
    alone = pd.DataFrame(
        {"device": f"a100:mig={size}", "workload": job, "step_time_s": step * (k + 2 if size == "1g" else 1)}
        for k, job in enumerate(jobs)
        for size, step in (("7g", 0.1), ("1g", 0.1))
    ).assign(
        campaign="miso", memory_bytes=np.nan, gpus=1, utilization_ratio=np.nan, memory_bandwidth_ratio=np.nan
    )
    # Numbers of more than one digit: sets are in the order of their names.
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    rows = [
        {"set_id": f"miso/{8 + n}", "member": member, "device": "a100", "sharing": "mps", "workload": jobs[job],
         "architecture": jobs[job].partition(":")[0], "numerator_sm_share_ratio": 1.0,
         "denominator_sm_share_ratio": 0.14, "log_step_time_ratio": -0.1 * (2 * n + member), "campaign": "miso"}
        for n, pair in enumerate(pairs) for member, job in enumerate(pair)
    ]  # fmt: skip
    tables = {"mixes": pd.DataFrame(rows), "solo": alone}
    examples = mixes_as_sets(tables)
    log_ratio = {(r["set_id"], r["workload"]): r["log_step_time_ratio"] for r in rows}
    monkeypatch.setattr(_Remembered, "log_ratio", log_ratio, raising=False)
    monkeypatch.setattr(_Remembered, "sides", [], raising=False)
    monkeypatch.setattr(mix_sharing, "MixSharing", _Remembered)
    monkeypatch.setattr(mixes_module, "learners", lambda _fold, prior: {"prior": prior})
    test = examples.subset([examples.set_ids[0]])
    train = examples.subset(examples.set_ids[1:])
    prior = learners_of(tables)(SimpleNamespace(train=train, test=test))["prior"]
    np.testing.assert_allclose(prior, -np.log(np.concatenate([train.ratio, test.ratio])), atol=1e-9)
    *inner, last = _Remembered.sides
    assert last == (
        {str(w.without_solo()) for w in train.workloads},
        {str(w.without_solo()) for w in test.workloads},
    )
    assert len(inner) == 4
    assert all(asked - seen for seen, asked in inner), "every inner fit leaves out a network"
