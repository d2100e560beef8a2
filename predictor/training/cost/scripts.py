"""Host costs of a training script: three numbers, from steps whose device time the cost model predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.cost.form import HOSTS, overlapped
from models.cost.model import CostModel
from models.cost.work import Floats
from predictor.training.cost.examples import CostExample

# Log error beyond which a step counts less and less: a loader or simulator that keeps a GPU waiting says
# nothing about others.
_SCALE = 0.3
# Weight of the values at which the fit of the operators ended.
_PRIOR = 0.05


def with_script_hosts(
    model: CostModel, examples: Sequence[CostExample], fitted_to: Sequence[CostExample] = ()
) -> CostModel:
    """The model with host costs of host-fed training steps (per kernel, step and sample) fitted to scripts.

    Harnesses launch kernels back to back; a script also runs its loop, loader and logging. Campaigns of the
    fit keep their host costs. Campaigns and devices have equal weight.

    Args:
        model: the fitted cost model.
        examples: steps of scripts.
        fitted_to: the examples to which the model was fitted.
    """
    if not examples:
        return model
    from scipy.optimize import least_squares

    costs = [model.cost_of(e.job) for e in examples]
    busy, launches, host = (
        np.array([getattr(c, n) for c in costs]) for n in ("busy_s", "launches", "host_s")
    )
    samples = np.array([e.job.batch_size for e in examples], dtype=np.float64)
    measured = np.array([e.log_s for e in examples])
    groups = [(e.campaign, e.job.device.name) for e in examples]
    sizes = Counter(groups)
    weight = np.sqrt([len(groups) / len(sizes) / sizes[g] for g in groups])
    row = HOSTS.index("training")
    start: Floats = np.mean([w["log_host_s"][row] for w in model.members], axis=0)

    def errors(log_host_s: Floats) -> Floats:
        launch_s, fixed_s, sample_s = np.exp(log_host_s)
        device = overlapped(busy, launches * launch_s)
        off = weight * (np.log(device + fixed_s + samples * sample_s + host) - measured)
        return np.concatenate([off, _PRIOR * (log_host_s - start)])

    fitted = least_squares(errors, start, loss="cauchy", f_scale=_SCALE).x
    names = {e.campaign for e in fitted_to if e.timing == "step" and e.job.host == row}
    fed = [number for number, name in enumerate(model.campaigns) if name in names]
    members = []
    for member in model.members:
        log_host_s, effect = member["log_host_s"].copy(), member["host_effect"].copy()
        effect[fed] += log_host_s[row] - fitted
        log_host_s[row] = fitted
        members.append({**member, "log_host_s": log_host_s, "host_effect": effect})
    return replace(model, members=tuple(members))
