"""What the host of a training script costs: three numbers, from steps whose device time the cost model knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.cost.form import HOSTS, overlapped
from models.cost.model import CostModel
from models.cost.work import Floats
from predictor.training.cost.examples import CostExample

# Log error from which a step says less and less: loaders and simulators that keep a GPU waiting say nothing of others.
_SCALE = 0.3
# Weight of the values that the fit of the operators ended with.
_PRIOR = 0.05


def with_script_hosts(
    model: CostModel, examples: Sequence[CostExample], fitted_to: Sequence[CostExample] = ()
) -> CostModel:
    """The same with host costs of fed training steps (a kernel, a step, a sample) fitted to scripts.

    Harnesses launch kernels back to back; a script also runs its loop, loader and logging. Campaigns of
    the fit keep the host costs that they have. Campaigns and devices weigh alike.

    Args:
        examples: steps of scripts.
        fitted_to: what the model was fitted to.
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
