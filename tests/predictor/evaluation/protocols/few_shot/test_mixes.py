"""MISO's mixes as sets, with synthetic rows of its jobs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from predictor.evaluation.protocols.few_shot.mixes import mixes_as_sets
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
