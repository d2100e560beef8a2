"""The plan for one card: whole, shared by time slicing or MPS, partitioned by MIG, or a mixture; with
reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.types import Floats, SetPredictor
from profiling.devices import get_device, has_mig, mig_layout
from profiling.devices.mig import MigLayout, Partition
from profiling.errors import InfeasibleError, LimitError
from scheduling.slices.exact import MAX_JOBS, NONE, Packing, pack
from scheduling.slices.options import Options, SetKey, SetOption, SliceConfig, SliceJob, mask_of
from scheduling.slices.questions import answer, ask_unlimited

KINDS = ("whole", "time-slice", "mps", "mps-shares", "mig", "mixture")


@dataclass(frozen=True, slots=True)
class PlacedSlice:
    """One slice (or the whole card) and its jobs.

    Attributes:
        device: `a100` or `a100:mig=3g`.
        start: first memory slot; None for a whole card.
        option: its jobs; None if empty.
    """

    device: str
    start: int | None
    option: SetOption | None


@dataclass(frozen=True, slots=True)
class CardPlan:
    """One way to use a card.

    Attributes:
        kind: `whole` (one job), `time-slice`, `mps`, `mps-shares` (some share below 1), `mig` (one job per
            slice)
            or `mixture` (some slices hold several jobs).
        partition: e.g. `4g+2g+1g`; empty for an unpartitioned card.
        slices: in slot order.
        value: of the objective; higher is better.
        waiting: jobs without room.
    """

    kind: str
    partition: str
    slices: tuple[PlacedSlice, ...]
    value: float
    waiting: tuple[int, ...] = ()

    @property
    def placed(self) -> int:
        return sum(len(s.option.members) for s in self.slices if s.option is not None)

    def of_job(self, number: int) -> tuple[PlacedSlice, int] | None:
        """Return the slice of a job and the job's position on it."""
        for placed in self.slices:
            if placed.option is not None and number in placed.option.members:
                return placed, placed.option.members.index(number)
        return None


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The chosen plan, its alternatives, and the reasons.

    Attributes:
        alternatives: the best plan of each other kind and partition, best first.
        reasons: why it was chosen over the runner-up.
    """

    options: Options
    chosen: CardPlan
    alternatives: tuple[CardPlan, ...]
    reasons: tuple[str, ...] = field(default=())

    def speed(self, plan: CardPlan, number: int) -> float:
        """Relative speed of a job in a plan; 0 if it waits."""
        placed = plan.of_job(number)
        if placed is None or placed[0].option is None:
            return 0.0
        return float(self.options.reference_s[number] / placed[0].option.step_time_s[placed[1]])

    def to_json(self) -> dict[str, Any]:
        """Convert to the JSON object of `cotenant plan slices --json`."""
        options = self.options
        return {
            "device": options.card,
            "objective": options.config.objective,
            **self.card_json(self.chosen),
            "alternatives": [
                {
                    "kind": card.kind,
                    "partition": card.partition,
                    "value": card.value,
                    **self.summary(card),
                }
                for card in self.alternatives
            ],
            "reasons": list(self.reasons),
        }

    def summary(self, plan: CardPlan) -> dict[str, float]:
        """Number of jobs placed, sum and minimum of their relative speeds, mean completion time."""
        speeds = [self.speed(plan, j) for j in range(len(self.options.jobs))]
        placed = [s for s in speeds if s > 0]
        return {
            "placed": len(placed),
            "speed_sum": sum(placed),
            "least_speed_ratio": min(placed, default=0.0),
            "mean_completion_s": float(
                np.mean([self._completion_s(plan, j) for j, s in enumerate(speeds) if s > 0])
            )
            if placed
            else 0.0,
        }

    def _completion_s(self, plan: CardPlan, number: int) -> float:
        reference = float(self.options.reference_s[number])
        return float(self.options.iterations[number]) * reference / self.speed(plan, number)

    def card_json(self, plan: CardPlan) -> dict[str, Any]:
        """One way to use the card as a JSON object."""
        options = self.options
        return {
            "kind": plan.kind,
            "partition": plan.partition,
            "value": plan.value,
            **self.summary(plan),
            "slices": [
                {
                    "device": placed.device,
                    "start": placed.start,
                    "sharing": placed.option.sharing if placed.option else None,
                    "memory_bytes": placed.option.memory_bytes if placed.option else 0.0,
                    "jobs": [
                        {
                            "job": str(options.jobs[j].workload),
                            "sm_share_ratio": placed.option.sm_share_ratio[k],
                            "step_time_s": placed.option.step_time_s[k],
                            "speed_ratio": float(options.reference_s[j] / placed.option.step_time_s[k]),
                            "completion_s": self._completion_s(plan, j),
                        }
                        for k, j in enumerate(placed.option.members)
                    ]
                    if placed.option
                    else [],
                }
                for placed in plan.slices
            ],
            "waiting": [str(options.jobs[j].workload) for j in plan.waiting],
        }


def plan_slices(
    jobs: Sequence[SliceJob],
    card: str,
    predictor: SetPredictor,
    config: SliceConfig | None = None,
    alternatives: bool = True,
) -> SlicePlan:
    """Find the best use of one card for these jobs, by exact search over its partitions and assignments.

    As many jobs as possible run; ties are decided by the objective. SM shares below 1 are tried not for every
    set
    of jobs, but for the sets that share a slice in the best plan of a partition (without `alternatives`, in
    the
    chosen plan only). Slices are assumed not to slow each other down (they share only power and the host
    link).

    Raises:
        InputError: no jobs, or a job that the card cannot run.
        InfeasibleError: no job fits on the card at all.
        LimitError: more jobs than the exact search supports.
    """
    config = config or SliceConfig()
    if len(jobs) > MAX_JOBS:
        hint = "plan for several with --gpus"
        raise LimitError(
            "too many jobs for one card", expected=f"at most {MAX_JOBS}", got=len(jobs), hint=hint
        )
    options = ask_unlimited(jobs, card, predictor, config)
    plan = best_of(options, alternatives)
    shared = _shared_sets(plan)
    if "mps" not in config.sharing or config.shares == (1.0,) or not shared:
        return plan
    limited = answer(jobs, options.card, shared, predictor, config, options)
    return best_of(options.without(limited.rows.keys()).joined(limited), alternatives)


def _shared_sets(plan: SlicePlan) -> list[SetKey]:
    """(device, members) of every set of several jobs in the plan and its alternatives."""
    used = (placed.option for card in (plan.chosen, *plan.alternatives) for placed in card.slices)
    return list(dict.fromkeys((o.device, o.members) for o in used if o is not None and len(o.members) > 1))


def best_of(options: Options, alternatives: bool = True) -> SlicePlan:
    """Choose the plan from the predictions; see `plan_slices`.

    Args:
        alternatives: also return the best plan of each other kind and partition, with reasons.
    """
    plans = [*_whole_card(options), *_partitioned(options, alternatives)]
    plans = [p for p in plans if p.placed]
    if not plans:
        columns = options.columns
        need = min(columns.memory_bytes[row] for row, m in enumerate(columns.members) if len(m) == 1)
        raise InfeasibleError(
            f"no job fits on {options.card} (predicted upper bound of the smallest {need / 2**30:.1f} GiB)",
            hint="lower the batch sizes, or plan for a card with more memory",
        )
    plans.sort(key=lambda p: _rank(options, p), reverse=True)
    plan = SlicePlan(options, plans[0], tuple(plans[1:]) if alternatives else ())
    return SlicePlan(options, plan.chosen, plan.alternatives, tuple(_reasons(plan)) if alternatives else ())


def _rank(options: Options, plan: CardPlan) -> tuple[float, ...]:
    """Sort key: jobs placed, objective, throughput; ties go to the simplest kind and the fewest slices."""
    used = [placed.option for placed in plan.slices if placed.option is not None]
    fair = options.config.objective == "fairness"
    least = round(min(option.least_speed for option in used), 9) if fair else 0.0
    return (plan.placed, least, round(plan.value, 9), -KINDS.index(plan.kind), -len(plan.slices))


def _whole_card(options: Options) -> list[CardPlan]:
    """The unpartitioned card: for each way to share it, the best plan with the largest set that fits."""
    fair = options.config.objective == "fairness"
    columns = options.columns
    best: dict[str, tuple[tuple[float, ...], SetOption]] = {}
    for row, device in enumerate(columns.device):
        if device != options.card or not columns.fits[row]:
            continue
        option = columns.option(row)
        kind = "whole" if len(option.members) == 1 else option.sharing
        if kind == "mps" and min(option.sm_share_ratio) < 1:
            kind = "mps-shares"
        rank = (len(option.members), option.least_speed if fair else 0.0, option.value)
        if kind not in best or rank > best[kind][0]:
            best[kind] = rank, option
    everyone = range(len(options.jobs))
    return [
        CardPlan(
            kind,
            "",
            (PlacedSlice(options.card, None, option),),
            option.value,
            tuple(j for j in everyone if j not in option.members),
        )
        for kind, (_, option) in best.items()
    ]


def _partitioned(options: Options, alternatives: bool) -> list[CardPlan]:
    """Every partition, with one job per slice and with shared slices; only the best without
    `alternatives`."""
    if not (options.config.mig and has_mig(options.card)):
        return []
    layout, jobs = mig_layout(options.card), len(options.jobs)
    chosen, values, least = _tables(options, layout)
    by_fairness = least if options.config.objective == "fairness" else None
    largest = min(options.config.max_together, jobs) if options.config.sharing else 1
    partitions = layout.maximal if alternatives else layout.useful(jobs)
    packings = pack(partitions, values, jobs, largest, by_fairness)
    if not alternatives:
        packings = [max(packings, key=lambda p: (p.jobs.bit_count(), p.least, p.value))]
    plans = [_card_plan(options, layout, packing, chosen) for packing in packings]
    if alternatives and largest > 1:
        unshared = pack(layout.maximal, values, jobs, 1, by_fairness)
        mixed = [plan for plan in plans if plan.kind == "mixture"]
        plans = [*mixed, *(_card_plan(options, layout, packing, chosen) for packing in unshared)]
    return plans


def _tables(
    options: Options, layout: MigLayout
) -> tuple[dict[str, NDArray[np.int64]], dict[str, Floats], dict[str, Floats]]:
    """For each slice and mask: the row of the set's best option (-1 if none fits), its value and its least
    speed."""
    count, columns = 1 << len(options.jobs), options.columns
    number = {layout.device(profile): k for k, profile in enumerate(layout.profiles)}
    device = np.array([number.get(name, -1) for name in columns.device], np.int64)
    rows = np.flatnonzero((device >= 0) & columns.fits)
    place = device[rows] * count + np.array([mask_of(columns.members[row]) for row in rows], np.int64)
    first = columns.least_speed[rows] if options.config.objective == "fairness" else np.zeros(len(rows))
    order = np.lexsort((-columns.value[rows], -first, place))
    place, rows = place[order], rows[order]
    best = np.flatnonzero(np.r_[True, place[1:] != place[:-1]]) if len(rows) else np.zeros(0, np.int64)
    size = len(layout.profiles) * count
    chosen, value, least = np.full(size, -1), np.full(size, NONE), np.full(size, NONE)
    value[::count], least[::count] = 0.0, np.inf
    chosen[place[best]] = rows[best]
    value[place[best]], least[place[best]] = columns.value[rows[best]], columns.least_speed[rows[best]]
    names = [profile.name for profile in layout.profiles]

    def by_name(flat: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return dict(zip(names, flat.reshape(len(names), count), strict=True))

    return by_name(chosen), by_name(value), by_name(least)


def _card_plan(
    options: Options, layout: MigLayout, packing: Packing, chosen: dict[str, NDArray[np.int64]]
) -> CardPlan:
    """The slices of a packing in their slots, with its jobs on them."""
    placed = []
    waiting_parts = list(zip(packing.partition.profiles, packing.parts, strict=True))
    for start, profile in packing.partition.placements:
        at = next(k for k, (p, _) in enumerate(waiting_parts) if p is profile)
        _, mask = waiting_parts.pop(at)
        option = options.columns.option(int(chosen[profile.name][mask])) if mask else None
        placed.append(PlacedSlice(layout.device(profile), start, option))
    shared = any(slot.option is not None and len(slot.option.members) > 1 for slot in placed)
    waiting = tuple(j for j in range(len(options.jobs)) if not packing.jobs >> j & 1)
    partition: Partition = packing.partition
    return CardPlan("mixture" if shared else "mig", str(partition), tuple(placed), packing.value, waiting)


def _reasons(plan: SlicePlan) -> list[str]:
    """Why this plan was chosen, and why not the runner-up."""
    options, chosen = plan.options, plan.chosen
    objective = options.config.objective
    reasons = [f"{describe(chosen)}: {_score(plan, chosen)}"]
    if chosen.waiting:
        reasons.append(
            f"{len(chosen.waiting)} of {len(options.jobs)} jobs wait: no partition or sharing fits more of "
            f"them"
        )
    if not plan.alternatives:
        return reasons
    other = plan.alternatives[0]
    text = f"not {describe(other)}: {_score(plan, other)}"
    if other.placed < chosen.placed:
        text += f", and only {other.placed} of {chosen.placed} jobs fit{_why_not_fit(plan, other)}"
    else:
        losses = [(plan.speed(chosen, j) - plan.speed(other, j), j) for j in range(len(options.jobs))]
        loss, worst = max(losses)
        if loss > 1e-9:
            text += (
                f"; {options.jobs[worst].workload.model} would run at {plan.speed(other, worst):.2f} of a whole card"
                f" instead of {plan.speed(chosen, worst):.2f}"
            )
    reasons.append(text)
    if objective == "jct" and any(job.iterations is None for job in options.jobs):
        reasons.append("jobs of unknown length are assumed to take an hour alone on the whole card")
    return reasons


def _score(plan: SlicePlan, card: CardPlan) -> str:
    summary = plan.summary(card)
    match plan.options.config.objective:
        case "jct":
            return f"mean completion {summary['mean_completion_s']:.0f} s"
        case "fairness":
            return f"least speed {summary['least_speed_ratio']:.2f} of a whole card"
        case _:
            return f"{summary['speed_sum']:.2f} times the throughput of one job alone"


def _why_not_fit(plan: SlicePlan, other: CardPlan) -> str:
    if not other.partition or not other.waiting:
        return ""
    options = plan.options
    job = other.waiting[0]
    free = [placed for placed in other.slices if placed.option is None]
    if not free:
        return ""
    largest = max(free, key=lambda placed: get_device(placed.device).memory_bytes)
    need = options.choices(largest.device, (job,))[0].memory_bytes
    room = get_device(largest.device).memory_bytes
    if need <= room:
        return ""
    return (
        f" ({options.jobs[job].workload.model} needs up to {need / 2**30:.1f} GiB, "
        f"{largest.device} has {room / 2**30:.1f})"
    )


def describe(plan: CardPlan) -> str:
    """A short description of a plan."""
    match plan.kind:
        case "whole":
            return "the whole card for one job"
        case "time-slice":
            return "the whole card in time slices"
        case "mps":
            return "the whole card under MPS"
        case "mps-shares":
            return "the whole card under MPS with SM shares"
        case "mig":
            return f"MIG {plan.partition}, one job per slice"
        case _:
            return f"MIG {plan.partition} with shared slices"
