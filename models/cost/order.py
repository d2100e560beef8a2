"""Which of two jobs takes longer, or more memory, whatever is predicted for them: the one with more in every option.

The cost model keeps to this order by construction, except for `data_on_device`: there the fitted host costs do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from models.cost.work import Floats
from profiling.workload import Workload

LOAD_WIDTH = 7
_SHARE, _CHECKPOINTING = 3, 4
_OF_MEMORY = np.array([1.0, 1.0, 1.0, 0.0, -1.0, -1.0, 1.0])


def load_of(workload: Workload) -> tuple[float, ...]:
    """[LOAD_WIDTH] numbers, each of an option; a step takes no less time with a larger one.

    Args:
        workload: with batch size and frozen layers as captured.
    """
    return (
        float(workload.batch_size or 0),
        float(workload.gradient_accumulation),
        -float(workload.frozen_prefix),
        -workload.sm_share_ratio,
        float(workload.activation_checkpointing),
        float(not workload.data_on_device),
        float(workload.mode == "training"),
    )


def without_load(workload: Workload) -> Workload:
    """The job without these options; `load_of` orders jobs for which this is the same."""
    return replace(
        workload,
        batch_size=None,
        gradient_accumulation=1,
        frozen_prefix=0,
        sm_share_ratio=1.0,
        activation_checkpointing=False,
        data_on_device=False,
        mode="training",
    )


def at_most(left: Floats, right: Floats) -> NDArray[np.bool_]:
    """[N, M] whether a load of `left` [N, LOAD_WIDTH] is in no number above one of `right` [M, LOAD_WIDTH]."""
    result = np.ones((len(left), len(right)), dtype=bool)
    for one, other in zip(left.T, right.T, strict=True):
        result &= np.less_equal.outer(one, other)
    return result


def memory_load(load: Floats) -> Floats:
    """[..., LOAD_WIDTH] numbers from those of `load_of`; a job takes no less memory with a larger one.

    A batch on the device stays there, and shares of the multiprocessors make no difference. With and without activation
    checkpointing, neither is larger: among frozen layers, the inputs that it keeps may be more than it saves.
    """
    result = np.asarray(load * _OF_MEMORY)
    result[..., _SHARE] = load[..., _CHECKPOINTING]
    return result
