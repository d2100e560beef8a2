"""The plan for one card: whole, shared by time slicing or MPS, partitioned by MIG, or a mixture; with reasons."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.types import SetPredictor
from profiling.devices import has_mig, mig_layout
from profiling.devices.mig import MigLayout, Partition
from profiling.errors import InfeasibleError, LimitError
from scheduling.slices.card_plan import KINDS, CardPlan, PlacedSlice, SlicePlan
from scheduling.slices.exact import MAX_JOBS, Packing, pack, pack_fairly
from scheduling.slices.options import Options, SetKey, SetOption, SliceConfig, SliceJob
from scheduling.slices.questions import answer, ask_unlimited
from scheduling.slices.reasons import reasons_for
from scheduling.slices.set_tables import SetTables


def plan_slices(
    jobs: Sequence[SliceJob],
    card: str,
    predictor: SetPredictor,
    config: SliceConfig = SliceConfig(),
    alternatives: bool = True,
    times: bool = True,
) -> SlicePlan:
    """Find the best use of one card for these jobs, by exact search over its partitions and assignments.

    As many jobs as possible run; ties are decided by the objective. SM shares below 1 are tried not for every
    set of jobs, but for the sets that share a slice in the best plan of a partition (without `alternatives`,
    in the chosen plan only). Slices are assumed not to slow each other down (they share only power and the
    host link).

    Args:
        alternatives: see `best_of`.
        times: with completion times, which only `jct` needs to find the plan.

    Raises:
        InputError: no jobs, or a job that the card cannot run.
        InfeasibleError: no job fits on the card at all.
        LimitError: more jobs than the exact search supports.
    """
    config = config.on(card)
    if len(jobs) > MAX_JOBS:
        hint = "plan for several with --gpus"
        raise LimitError(
            "too many jobs for one card", expected=f"at most {MAX_JOBS}", got=len(jobs), hint=hint
        )
    options = ask_unlimited(jobs, card, predictor, config, alternatives, times)
    plan = best_of(options, alternatives)
    shared = _shared_sets(plan)
    if alternatives:
        shared = [key for key in shared if key != (options.card, tuple(range(len(jobs))))]
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
    return SlicePlan(
        options, plan.chosen, plan.alternatives, tuple(reasons_for(plan)) if alternatives else ()
    )


def _rank(options: Options, plan: CardPlan) -> tuple[float, ...]:
    """Sort key: jobs placed, objective, throughput; ties go to the simplest kind and the fewest slices."""
    used = [placed.option for placed in plan.slices if placed.option is not None]
    fair = options.config.objective == "fairness"
    least = _to_six_digits(min(option.least_speed for option in used)) if fair else 0.0
    return (plan.placed, least, _to_six_digits(plan.value), -KINDS.index(plan.kind), -len(plan.slices))


def _to_six_digits(value: float) -> float:
    """The value without what the order of the jobs changes in sums of 32-bit numbers."""
    return float(f"{value:.6g}")


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
        least = _to_six_digits(option.least_speed) if fair else 0.0
        rank = (len(option.members), least, option.value)
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
    tables = SetTables.of(options, layout)
    largest = min(options.config.max_together, jobs) if options.config.sharing else 1

    def packed(partitions: Sequence[Partition], largest: int) -> list[Packing]:
        if options.config.objective == "fairness":
            return pack_fairly(partitions, tables.least(), tables.values, jobs, largest)
        return pack(partitions, tables.values(), jobs, largest)

    packings = packed(layout.maximal if alternatives else layout.useful(jobs), largest)
    if not alternatives:
        packings = [max(packings, key=lambda p: (p.jobs.bit_count(), p.least, p.value))]
    plans = [_card_plan(layout, packing, tables) for packing in packings]
    if alternatives and largest > 1:
        mixed = [plan for plan in plans if plan.kind == "mixture"]
        plans = [
            *mixed,
            *(_card_plan(layout, packing, tables) for packing in packed(layout.maximal, 1)),
        ]
    return plans


def _card_plan(layout: MigLayout, packing: Packing, tables: SetTables) -> CardPlan:
    """The slices of a packing in their slots, with its jobs on them."""
    options, chosen = tables.options, tables.rows(packing.least)
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
