"""What training scripts add to the cost model: host costs, and effects of GPU types that only they measured.

Both are a few numbers, fitted with the operators' part fixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from models.cost.form import EFFECTS, HOSTS, overlapped
from models.cost.job import effect_names
from models.cost.model import CostModel
from models.cost.work import Floats
from predictor.training.cost.examples import CostExample

# Log error beyond which a step counts less and less: a loader or simulator that keeps a GPU waiting says
# nothing about others.
_SCALE = 0.3
# Weight of the values at which the fit of the operators ended.
_PRIOR = 0.05
# Of a device effect: weight of the mean effect of all types, and how far it may differ from it.
_EFFECT_PRIOR, _EFFECT_RANGE = 0.05, 4.0


def with_script_devices(model: CostModel, examples: Sequence[CostExample]) -> CostModel:
    """The model with an effect for each GPU type and precision that only scripts measured.

    It shifts the efficiencies of arithmetic and memory alike, because step times do not separate them.

    Args:
        model: the fitted cost model.
        examples: steps of scripts.
    """
    groups: dict[tuple[str, str], list[CostExample]] = {}
    for example in examples:
        names = effect_names(example.job.device.name, example.job.precision)
        if not set(names) & set(model.devices):
            groups.setdefault(names, []).append(example)
    for names, members in groups.items():
        model = _with_device(model, names[1], members)
    return model


def _with_device(model: CostModel, name: str, examples: Sequence[CostExample]) -> CostModel:
    from scipy.optimize import minimize_scalar

    job = examples[0].job
    shifted = np.isin(EFFECTS, ("compute_efficiency", "memory_efficiency")).astype(np.float64)
    measured = np.array([e.log_s for e in examples])

    def shift(difference: float) -> CostModel:
        members = []
        for member in model.members:
            table = member["device_effect"]
            row = model.effects(table, job) + difference * shifted
            members.append({**member, "device_effect": np.insert(table, len(model.devices), row, axis=0)})
        return replace(model, members=tuple(members), devices=(*model.devices, name))

    def loss(difference: float) -> float:
        shifted_model = shift(difference)
        errors = np.log([shifted_model.cost_of(e.job).step_time_s for e in examples]) - measured
        return float(np.log1p((errors / _SCALE) ** 2).sum() + _EFFECT_PRIOR * difference**2)

    bounds = (-_EFFECT_RANGE, _EFFECT_RANGE)
    return shift(float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.01}).x))


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
    samples = np.array([e.job.samples for e in examples], dtype=np.float64)
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
