"""A plan in words: what it is, why it was chosen, and why not the runner-up."""

from __future__ import annotations

from profiling.devices import get_device, split_device
from scheduling.slices.card_plan import CardPlan, SlicePlan
from scheduling.slices.options import Options


def reasons_for(plan: SlicePlan) -> list[str]:
    """Why this plan was chosen, and why not the runner-up."""
    options, chosen = plan.options, plan.chosen
    objective = options.config.objective
    reasons = [f"{describe(chosen)}: {_score(plan, chosen)}"]
    if chosen.waiting:
        reasons.append(
            f"{len(chosen.waiting)} of {len(options.jobs)} jobs wait: no partition or sharing fits more of "
            f"them"
        )
        reasons += dict.fromkeys(filter(None, (too_large(options, number) for number in chosen.waiting)))
    reasons += not_enforced(options)
    if not plan.alternatives:
        return reasons
    other = plan.alternatives[0]
    text = f"not {describe(other)}: {_score(plan, other)}"
    if other.placed < chosen.placed:
        text += f", and only {other.placed} of {chosen.placed} jobs fit{_why_not_fit(plan, other)}"
    else:
        losses = [(plan.speed(chosen, j) - plan.speed(other, j), j) for j in range(len(options.jobs))]
        loss, worst = max(losses)
        now, then = f"{plan.speed(chosen, worst):.2f}", f"{plan.speed(other, worst):.2f}"
        if loss > 0 and worst in other.waiting:
            text += f"; {options.jobs[worst].workload.model} would wait"
        elif loss > 0 and then != now:
            text += (
                f"; {options.jobs[worst].workload.model} would run at {then} of {_whole(options.card)} "
                f"instead of {now}"
            )
    reasons.append(text)
    if objective == "jct" and any(job.iterations is None for job in options.jobs):
        reasons.append(
            f"jobs of unknown length are assumed to take an hour alone on {_whole(options.card, 'the')}"
        )
    return reasons


def too_large(options: Options, number: int) -> str:
    """Why a job fits on no such card, not even alone; empty if it does."""
    alone = options.choices(options.card, (number,))[0]
    if alone.fits:
        return ""
    room = get_device(options.card).memory_bytes
    if alone.memory_bytes == room:
        return f"{options.jobs[number].workload} never fits: it ran out of memory on {options.card}"
    return (
        f"{options.jobs[number].workload} never fits: it needs up to {alone.memory_bytes / 2**30:.1f} GiB and "
        f"{options.card} has {room / 2**30:.1f}"
    )


def not_enforced(options: Options) -> list[str]:
    """Says that the card enforces no SM shares although a job has one; empty if it does, or if none has."""
    device, shared = get_device(options.card), "mps" in options.config.sharing
    if device.has_mps_shares or not shared or all(job.workload.sm_share_ratio == 1 for job in options.jobs):
        return []
    return [f"MPS enforces no sm_share_ratio on {device.name}, only from Volta on; the plan has none"]


def _score(plan: SlicePlan, card: CardPlan) -> str:
    summary = plan.summary(card)
    match plan.options.config.objective:
        case "jct":
            return f"mean completion {summary['mean_completion_s']:.0f} s"
        case "fairness":
            return f"least speed {summary['least_speed_ratio']:.2f} of {_whole(plan.options.card)}"
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
    whole = _whole(plan.slices[0].device, "the")
    match plan.kind:
        case "whole":
            return f"{whole} for one job"
        case "time-slice":
            return f"{whole} in time slices"
        case "mps":
            return f"{whole} under MPS"
        case "mps-shares":
            return f"{whole} under MPS with SM shares"
        case "mig":
            return f"MIG {plan.partition}, one job per slice"
        case _:
            return f"MIG {plan.partition} with shared slices"


def _whole(device: str, article: str = "a") -> str:
    """What the plan is about: a card, or one slice that is shared."""
    return f"{article} whole {'card' if split_device(device)[1] is None else 'slice'}"
