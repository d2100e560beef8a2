"""Jobs that MPS limits to a share of the multiprocessors, beside others.

What a share keeps a job from doing, its neighbours need not keep it from as well: of two jobs at one half each neither is slowed by its share and
then by a neighbour that may use the same multiprocessors. So jobs are answered beside each other as if nothing limited them, and a step takes the
longer of what the neighbours and what the share leave: no share of a neighbour makes a job slower.
"""

from __future__ import annotations

from dataclasses import replace

from predictor.examples.featurizer import Featurizer
from profiling.workload import Workload


def unlimited(workload: Workload, device: str, featurizer: Featurizer) -> tuple[Workload, float]:
    """The job without its share, and its step time alone over that with the share (at most 1).

    A step that was measured under the share is brought to the whole device by the cost model.
    """
    if workload.sm_share_ratio == 1.0:
        return workload, 1.0
    limited = workload.without_solo()
    whole = replace(limited, sm_share_ratio=1.0)
    steps = [featurizer.job(job, device).cost.step_time_s for job in (whole, limited)]
    ratio = min(steps[0] / steps[1], 1.0)
    measured = workload.solo.step_time_s
    solo = replace(workload.solo, step_time_s=None if measured is None else measured * ratio)
    return replace(whole, solo=solo), ratio
