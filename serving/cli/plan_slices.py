"""`cotenant plan slices`: MIG partition, MPS shares or whole-GPU sharing for given jobs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.cli.output import (
    JsonFlag,
    bullets,
    console,
    counted,
    duration,
    headline,
    interval,
    plain_table,
    print_json,
)
from serving.cli.predict import FeedbackOption, corrected
from serving.given_names import as_given

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from predictor import Predictor
    from predictor.types import Prediction, SetPredictor
    from scheduling.slices.card_plan import SlicePlan
    from scheduling.slices.options import SliceConfig, SliceJob

_LINES = 10


def slices(
    device: Annotated[
        str,
        typer.Option(help="The card: a100, a30, h100, h200, ...; or any GPU, for sharing without MIG."),
    ],
    job: Annotated[
        list[str],
        typer.Option(help="Job SPEC; repeat for each job. `sm_share_ratio=` fixes its share under MPS."),
    ],
    iterations: Annotated[
        list[float] | None,
        typer.Option(
            help="Remaining steps of each job, in the order of --job (default: one hour's worth alone)."
        ),
    ] = None,
    objective: Annotated[str, typer.Option(help="throughput, jct or fairness.")] = "throughput",
    sharing: Annotated[
        str,
        typer.Option(help="How jobs may share a card or a slice: `time-slice,mps`, one of them, or `none`."),
    ] = "time-slice,mps",
    mig: Annotated[bool, typer.Option(help="Whether the card may be partitioned.")] = True,
    gpus: Annotated[int, typer.Option(min=1, help="Number of cards to plan for.")] = 1,
    max_together: Annotated[
        int, typer.Option(help="Maximum number of jobs on a slice; a whole card takes up to 8.")
    ] = 4,
    model: Annotated[
        str, typer.Option(help="Predictor: `default`, a folder, or `models:/NAME@ALIAS`.")
    ] = "default",
    feedback: FeedbackOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Plan the best use of a card for these jobs: whole, time slices, MPS shares, MIG, or slices that several share.

    Considers every valid partition and every assignment that fits in memory. Exit code 1: some job does not
    fit.

    Example: `cotenant plan slices --device a100 --job resnet50-imagenet:batch_size=32 --job lstm-wikitext2 --job dcgan-64`
    """
    from predictor import load_predictor
    from profiling.capture import local_workload
    from profiling.devices import get_device
    from scheduling.slices.options import SliceConfig

    modes = tuple(mode for mode in map(str.strip, sharing.split(",")) if mode)
    modes = () if modes == ("none",) else modes
    config = SliceConfig(objective=objective, sharing=modes, mig=mig, max_together=max_together)
    card, left = get_device(device).name, iterations or []
    workloads = [local_workload(spec) for spec in job]  # report a wrong name before torch is imported
    from scheduling.slices.answered import answered_plan, jobs_as_known

    predictor = load_predictor(model)
    belief = corrected(predictor, feedback)
    if gpus > 1:
        jobs = jobs_as_known(workloads, left, card, belief)
        renamed = as_given(job, workloads, [each.workload for each in jobs])
        _fleet(jobs, device, gpus, predictor, belief, config, as_json, renamed)
        return
    answered = answered_plan(workloads, left, card, belief, config)
    renamed = as_given(job, workloads, answered.told)
    if as_json:
        print_json(renamed(answered.to_json()))
    else:
        show(answered.plan, renamed, answered.answers, answered.never_measured)
    if answered.plan.chosen.waiting:
        raise typer.Exit(1)


def _fleet(
    jobs: list[SliceJob],
    device: str,
    gpus: int,
    predictor: Predictor,
    belief: SetPredictor,
    config: SliceConfig,
    as_json: bool,
    renamed: Callable[[Any], Any],
) -> None:
    from predictor.answering.never_measured import never_measured
    from scheduling.slices.fleet import plan_fleet

    fleet = plan_fleet(jobs, device, gpus, belief, config)
    # Cards with equal jobs ask the same.
    sets = dict.fromkeys(
        asked
        for numbers, card in fleet.cards
        for asked in card.chosen.sets([jobs[number] for number in numbers])
        if asked is not None
    )
    answer = fleet.to_json() | {"never_measured": never_measured(predictor, list(sets))}
    if as_json:
        print_json(renamed(answer))
    else:
        out = console()
        _show_cards(renamed(answer["cards"]))
        out.print(
            f"{answer['placed']:.0f} of {len(jobs)} jobs placed, {answer['speed_sum']:.2f} times the throughput of one "
            f"job alone, least speed {answer['least_speed_ratio']:.2f}, mean completion {answer['mean_completion_s']:.0f} s"
        )
        _show_waiting(Counter(renamed(answer["waiting"])))
        reasons = [*renamed(answer["reasons"][:_LINES]), *answer["never_measured"]]
        if reasons:
            out.print(bullets(reasons))
    if fleet.waiting:
        raise typer.Exit(1)


def _show_cards(cards: Sequence[dict[str, Any]]) -> None:
    """What each card holds; cards with equal slices and jobs in one row."""
    count: Counter[tuple[str, ...]] = Counter()
    for card in cards:
        what = f"{card['kind']} {card['partition']}".strip()
        on = [
            f"{part['device']}: {', '.join(job['job'] for job in part['jobs'])}"
            for part in card["slices"]
            if part["jobs"]
        ]
        count[(what, *sorted(on))] += 1
    table = plain_table("cards", "use", "jobs", right=("cards",))
    for (what, *on), number in count.most_common(_LINES):
        table.add_row(str(number), what, "\n".join(on))
    console().print(table)
    if len(count) > _LINES:
        rest = len(cards) - sum(number for _, number in count.most_common(_LINES))
        console().print(f"and {counted(rest, 'card')} more, see --json")


def _show_waiting(count: Counter[str]) -> None:
    """The jobs without room, equal ones in one line."""
    rest = count.total()
    for spec, number in count.most_common(_LINES):
        console().print(f"waits: {spec}" + (f" ({number} times)" if number > 1 else ""))
        rest -= number
    if rest:
        console().print(f"and {rest} more, see --json")


def show(
    plan: SlicePlan,
    renamed: Callable[[Any], Any],
    answers: Sequence[Prediction | None],
    never_measured: Sequence[str],
) -> None:
    """Print a plan as tables with its reasons.

    Args:
        renamed: from `as_given`.
        answers: for each slice of the plan, the prediction of its jobs; None if it is empty.
        never_measured: what was never measured of them.
    """
    from scheduling.slices.reasons import describe

    out, options = console(), plan.options
    numbers = ("share", "step", "speed")
    table = plain_table("slice", "job", "how", *numbers, right=numbers)
    for part, answer in zip(plan.chosen.slices, answers, strict=True):
        if part.option is None or answer is None:
            table.add_row(part.device, "(empty)", "", "", "", "")
            continue
        for k, number in enumerate(part.option.members):
            share = part.option.sm_share_ratio[k]
            table.add_row(
                part.device if k == 0 else "",
                renamed(str(options.jobs[number].workload)),
                part.option.sharing,
                f"{100 * share:.0f} %" if share < 1 else "",
                f"{duration(part.option.step_time_s[k])}\n{interval(answer.members[k].step_time_s)}",
                f"{plan.speed(plan.chosen, number):.2f}",
            )
    out.print(headline(describe(plan.chosen)))
    out.print(table)
    for number in plan.chosen.waiting:
        out.print(f"waits: {renamed(str(options.jobs[number].workload))}")
    out.print(bullets([*renamed(plan.reasons), *never_measured]))
    summed = ("jobs", "speeds", "least", "mean\ncompletion")
    others = plain_table("otherwise", *summed, right=summed)
    for other in plan.alternatives[:8]:
        summary = plan.summary(other)
        others.add_row(
            describe(other),
            f"{summary['placed']:.0f}",
            f"{summary['speed_sum']:.2f}",
            f"{summary['least_speed_ratio']:.2f}",
            f"{summary['mean_completion_s']:.0f} s",
        )
    if plan.alternatives:
        out.print(others)
