"""Chooses the runs of a measuring campaign: the most informative per second of measuring.

Jobs are chosen to cover models and batch sizes, sets by `predictor.campaigns.experiment_design`, with the
predictor's interval width (if there is a predictor) as prior standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations_with_replacement

import numpy as np

from models.cost import default_cost_model
from predictor.campaigns.experiment_design import greedy_design, set_kernel, standardize
from predictor.types import Floats
from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.checked_fields import check_range
from profiling.devices import DeviceSpec, discover_cpu, get_device
from profiling.errors import CotenantError, InputError
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from profiling.workload import ColocationSet, Workload

# Columns of `Candidate.features` that grow with the batch: FLOPs, bytes, activations, time.
_GROWING = (0, 1, 4, 6)
_HALF_TIME = np.array([0, 0, 0, 0, 0, 0, np.log(2)])
# The grid of frozen prefixes, as shares of the atomic layers, and those also measured with cached activations.
_FROZEN_RATIOS, _CACHED_RATIOS = (0.0, 0.25, 0.5, 0.75, 0.95), (0.5, 0.95)
# Random sets of three among the candidates.
_TRIPLES = 150
# Batch sizes of zoo models with a shorter or longer estimated step are left out.
_LEAST_STEP_S, _MOST_STEP_S = 5e-4, 0.12


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Settings of a campaign plan.

    Attributes:
        budget_s: expected time of all runs.
        max_workloads: most jobs to include; one per model first, then other batch sizes.
        frozen_models: models measured with a frozen prefix.
        sharing: sharing modes.
        sm_shares: SM shares, below 1, at which jobs are measured alone under MPS; none: no sweep.
        share_models: number of models in that sweep.
        setup_s: expected time to start and warm up one member.
        seed: random seed.
    """

    budget_s: float = 1200.0
    max_workloads: int = 24
    frozen_models: int = 5
    sharing: tuple[str, ...] = ("time-slice",)
    sm_shares: tuple[float, ...] = ()
    share_models: int = 6
    setup_s: float = 2.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.budget_s > 0:
            raise InputError("budget is out of range", expected="seconds above 0", got=self.budget_s)
        check_range(self, lambda value: value >= 1, "an integer from 1", "max_workloads", "share_models")
        check_range(self, lambda value: value >= 0, "an integer from 0", "frozen_models", "seed")
        for share in self.sm_shares:
            if not 0 < share < 1:
                raise InputError("SM share is out of range", expected="above 0, below 1", got=share)


@dataclass(frozen=True)
class Candidate:
    """A candidate job, with estimates from its graph.

    Attributes:
        step_time_s: estimated from FLOPs, bytes and kernels.
        features: [F] logarithms of its demands.
        layers: number of atomic layers.
    """

    workload: Workload
    step_time_s: float
    features: Floats = field(repr=False)
    layers: int = 0


def plan_campaign(
    device: str,
    jobs: Sequence[Workload] = (),
    config: PlanConfig = PlanConfig(),
    settings: MeasureSettings = MeasureSettings(),
    name: str = "campaign",
    predictor: str | None = "default",
) -> CampaignPlan:
    """Plan a campaign on `cpu` or `cuda`.

    Args:
        jobs: jobs to include as given; empty: the zoo, at batch sizes that suit the device.
        predictor: its uncertainty weights the sets; if None, or if it does not know the device or a job, all
            sets have equal weight.

    Raises:
        UnknownNameError: no such job or predictor.
        InputError: the budget is too short even for the jobs alone, or SM shares on a CPU.
    """
    if config.sm_shares and device != "cuda":
        raise InputError("SM shares require MPS", expected="device cuda", got=device)
    spec = discover_cpu() if device == "cpu" else _gpu_spec()
    rates = _single_core(spec) if device == "cpu" else spec
    pool = [candidate(job, rates) for job in jobs] if jobs else zoo_candidates(rates)
    chosen = pool if jobs else [_captured(c, rates) for c in choose_workloads(pool, config.max_workloads)]
    runs = [
        PlannedRun(RunRequest("solo", (c.workload,), device), _expected_s([c], config, settings), "alone")
        for c in chosen
    ]
    fixed = [
        run
        for make in (_frozen_runs, share_runs, _operator_runs)
        for run in make(chosen, device, config, settings)
    ]
    left = config.budget_s - sum(r.expected_s for r in [*runs, *fixed])
    if left < 0 and sum(r.expected_s for r in runs) > config.budget_s:
        raise InputError(
            "budget is too short for the jobs alone",
            expected=f"at least {sum(r.expected_s for r in runs):.0f} s",
            got=f"{config.budget_s:.0f} s",
            hint="choose fewer jobs or more time",
        )
    if left < 0:
        fixed, left = [], config.budget_s - sum(r.expected_s for r in runs)
    sets = candidate_sets(len(chosen), config.seed)
    requests = [
        RunRequest("colocation", tuple(chosen[i].workload for i in members), device, mode)
        for members in sets
        for mode in config.sharing
    ]
    members = [members for members in sets for _ in config.sharing]
    costs = np.array([_expected_s([chosen[i] for i in m], config, settings) for m in members])
    modes = np.array([j for _ in sets for j in range(len(config.sharing))], dtype=float)
    kernel = set_kernel(np.stack([c.features for c in chosen]), members, modes)
    scale = _uncertainty(requests, spec.name, predictor)
    for index, gain in greedy_design(kernel * np.outer(scale, scale), costs, left, members):
        reason = f"variance left {gain:.2f}"
        runs.append(PlannedRun(requests[index], float(costs[index]), reason))
    return CampaignPlan(name, device, (*runs, *fixed), settings)


def zoo_candidates(rates: DeviceSpec) -> list[Candidate]:
    """Every zoo model at up to three batch sizes whose estimated step is within the bounds.

    These are the smallest, the largest and one between, from powers of two (on a GPU up to four times the
    default). Models whose smallest step is too long are skipped. On a GPU the middle size is also included in
    mixed precision. Each model is captured once; its other batch sizes are estimates.
    """
    from profiling.zoo import get_model, zoo_names

    candidates: list[Candidate] = []
    for name in zoo_names():
        default = get_model(name).batch_size
        largest = default if rates.name == "cpu" else 4 * default
        # from 2, because batch normalisation cannot train on one sample
        sizes = [*(2**p for p in range(1, 24) if 2**p < largest), largest]
        base = candidate(Workload(name, batch_size=default), rates)
        scaled = [_rescaled(base, size / default, size) for size in sizes]
        fits = [c for c in scaled if _LEAST_STEP_S <= c.step_time_s <= _MOST_STEP_S]
        if not fits:
            continue
        candidates += [fits[i] for i in sorted({0, len(fits) // 2, len(fits) - 1})]
        if rates.name != "cpu":
            middle = fits[len(fits) // 2]
            # assume half the time, for less traffic and tensor cores; the campaign measures the actual ratio
            candidates.append(
                replace(
                    middle,
                    workload=replace(middle.workload, precision="amp"),
                    step_time_s=middle.step_time_s / 2,
                    features=middle.features - _HALF_TIME,
                )
            )
    return candidates


def _captured(estimate: Candidate, rates: DeviceSpec) -> Candidate:
    """The candidate from its own graph.

    If its options cannot be captured without the device, it is the estimate.
    """
    try:
        return candidate(estimate.workload, rates)
    except (RuntimeError, ValueError):
        return estimate


def _rescaled(base: Candidate, ratio: float, batch_size: int) -> Candidate:
    """The same model at another batch size.

    FLOPs, bytes, activations and time scale with it; the rest is unchanged.
    """
    demands = np.expm1(base.features)
    demands[list(_GROWING)] *= ratio
    workload = replace(base.workload, batch_size=batch_size)
    return Candidate(workload, base.step_time_s * ratio, np.log1p(demands), base.layers)


def candidate(workload: Workload, rates: DeviceSpec) -> Candidate:
    """The plan's data about a job, from its computation graph and the cost model.

    Raises:
        CotenantError: the job has no graph.
    """
    from profiling.capture import graph_for

    graph = graph_for(workload, local=True)
    seconds = default_cost_model().cost(graph, rates, workload).step_time_s
    demands = (
        graph.step_flops,
        graph.step_bytes,
        graph.kernel_count,
        graph.state_bytes,
        graph.activation_bytes,
        graph.arithmetic_intensity,
        seconds * 1e6,
    )
    return Candidate(workload, seconds, np.log1p(np.array(demands, dtype=float)), len(graph.layers))


def choose_workloads(pool: Sequence[Candidate], count: int) -> list[Candidate]:
    """Choose `count` jobs that cover models and features.

    One job of each model comes first (the middle one by step time), then those farthest from all chosen by
    features.
    """
    by_model: dict[str, list[Candidate]] = {}
    for c in sorted(pool, key=lambda c: c.step_time_s):
        by_model.setdefault(c.workload.model, []).append(c)
    first = [some[len(some) // 2] for some in by_model.values()]
    rest = [c for c in pool if c not in first]
    if len(first) >= count:
        return farthest(first, 1, count)
    return farthest([*first, *rest], len(first), count)


def farthest(pool: Sequence[Candidate], given: int, count: int) -> list[Candidate]:
    """The first `given` of `pool`, then up to `count` the candidates farthest from all those chosen.

    Distances are Euclidean, on standardised features.
    """
    if not pool:
        return []
    x = standardize(np.stack([c.features for c in pool]))
    gaps = np.linalg.norm(x[:, None] - x[None, :given], axis=2).min(axis=1)
    taken = list(range(given))
    gaps[taken] = -np.inf
    while len(taken) < min(count, len(pool)):
        pick = int(np.argmax(gaps))
        taken.append(pick)
        gaps = np.minimum(gaps, np.linalg.norm(x - x[pick], axis=1))
        gaps[taken] = -np.inf
    return [pool[i] for i in taken]


def candidate_sets(jobs: int, seed: int) -> list[tuple[int, ...]]:
    """All pairs of `jobs` jobs by number, a job with itself included, and random triples."""
    pairs: list[tuple[int, ...]] = list(combinations_with_replacement(range(jobs), 2))
    generator = np.random.default_rng(seed)
    triples = {tuple(sorted(map(int, generator.integers(0, jobs, 3)))) for _ in range(_TRIPLES)}
    return pairs + sorted(triples)


def _fastest_by_model(chosen: Sequence[Candidate]) -> list[Candidate]:
    """One job of each model, the one with the shortest step."""
    by_model: dict[str, Candidate] = {}
    for c in sorted(chosen, key=lambda c: c.step_time_s):
        by_model.setdefault(c.workload.model, c)
    return list(by_model.values())


def _frozen_runs(
    chosen: Sequence[Candidate], device: str, config: PlanConfig, settings: MeasureSettings
) -> list[PlannedRun]:
    """The grid of k for the deepest model and those most unlike it, one job each."""
    deepest = sorted((c for c in _fastest_by_model(chosen) if c.layers > 8), key=lambda c: -c.layers)
    models = farthest(deepest, 1, config.frozen_models) if config.frozen_models else []
    runs = []
    for c in models:
        for ratio in _FROZEN_RATIOS:
            k = min(c.layers - 1, round(ratio * c.layers))
            job = replace(c.workload, frozen_prefix=k)
            for cached in (False, True) if ratio in _CACHED_RATIOS and k else (False,):
                request = RunRequest("freezing", (job,), device, cached_activations=cached)
                reason = f"{k} of {c.layers} layers frozen"
                runs.append(PlannedRun(request, _expected_s([c], config, settings), reason))
    return list({r.request: r for r in runs}.values())


def share_runs(
    chosen: Sequence[Candidate], device: str, config: PlanConfig, settings: MeasureSettings
) -> list[PlannedRun]:
    """Models alone under MPS at every share: the fastest model and those most unlike it, one job each."""
    models = farthest(_fastest_by_model(chosen), 1, config.share_models) if config.sm_shares else []
    return [
        PlannedRun(
            RunRequest("solo", (replace(c.workload, sm_share_ratio=share),), device, "mps"),
            _expected_s([replace(c, step_time_s=c.step_time_s / share)], config, settings),
            f"{share:g} of the SMs",
        )
        for c in models
        for share in config.sm_shares
    ]


def _operator_runs(
    chosen: Sequence[Candidate], device: str, config: PlanConfig, settings: MeasureSettings
) -> list[PlannedRun]:
    by_model = {c.workload.model: c for c in reversed(chosen)}
    return [
        PlannedRun(
            RunRequest("operators", (c.workload,), device),
            config.setup_s + 3 * settings.min_steps * c.step_time_s,
            "time per operator",
        )
        for c in reversed(by_model.values())
    ]


def _expected_s(members: Sequence[Candidate], config: PlanConfig, settings: MeasureSettings) -> float:
    """Processes, warm-up and all windows of one run."""
    steps, block = settings.min_steps, settings.warmup_block_steps
    setup = config.setup_s + sum(0.5 * config.setup_s + (2 * block + 2) * c.step_time_s for c in members[1:])
    if len(members) == 1:
        return setup + settings.repeats * max(settings.window_s, steps * members[0].step_time_s)
    alone = sum(max(settings.alone_window_s, steps * c.step_time_s) for c in members)
    slowest = max(c.step_time_s for c in members) * len(members)
    shared = max(settings.window_s, steps * slowest)
    return setup + settings.repeats * (alone + shared) + max(settings.window_s / 2, steps * slowest)


def _uncertainty(requests: Sequence[RunRequest], device: str, predictor: str | None) -> Floats:
    """[S] mean width of the predicted slowdown intervals, scaled to a mean of 1; ones without a predictor."""
    if predictor is None or not requests:
        return np.ones(len(requests))
    from predictor import load_predictor

    loaded = load_predictor(predictor)
    sets = [ColocationSet(device, r.workloads, r.sharing) for r in requests]
    try:
        predictions = loaded.predict_many(sets)
    except CotenantError:  # such as a device missing from the catalogue, or a user's factory
        return np.ones(len(requests))
    widths = np.array(
        [np.mean([m.slowdown.upper - m.slowdown.lower for m in p.members]) for p in predictions]
    )
    result: Floats = widths / widths.mean() if widths.mean() > 0 else np.ones(len(requests))
    return result


def _single_core(spec: DeviceSpec) -> DeviceSpec:
    return replace(spec, fp32_flops=spec.fp32_flops / spec.sm_count, sm_count=1)


def _gpu_spec() -> DeviceSpec:
    """The GPU on which the jobs would run; plans made elsewhere assume the largest type in the catalogue."""
    from profiling.devices.discovery import visible_gpu
    from profiling.errors import UnavailableError

    try:
        return visible_gpu()
    except UnavailableError:
        return get_device("h200")
