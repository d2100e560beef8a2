"""`cotenant plan ring`: how fast ring-all-reduce jobs run beside each other, and when and where to start them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving.cli.given_options import no_effect
from serving.cli.output import JsonFlag, console, plain_table, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduling.ring.case import RingCase
    from scheduling.ring.engine import Execution
    from scheduling.ring.fabric import Placement


def ring(
    context: typer.Context,
    case: Annotated[Path, typer.Argument(help="JSON with cluster, jobs and placement.", metavar="CASE.json")],
    clamp: Annotated[
        bool,
        typer.Option(
            "--clamp/--literal",
            help="k = xi1 p, clamped to at least 1 or exactly as printed in the paper.",
        ),
    ] = True,
    duty_cycle: Annotated[
        bool,
        typer.Option(
            "--duty-cycle",
            help="Count contention only during the part of a step in which a neighbour exchanges, not all "
            "the time as in the paper.",
        ),
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            help="Schedule the jobs instead, all from time 0: sjf-bco, sjf-bco-literal, list, first-fit, random, "
            "longest-first, best-list, local-search or exact (small cases, with --slot-s); or online, each from its "
            "arrival_s. The placement in the case is then ignored."
        ),
    ] = "",
    slot_s: Annotated[
        float, typer.Option(help="With --policy: slot length in seconds; 0 for continuous time.")
    ] = 0.0,
    order: Annotated[
        str,
        typer.Option(
            help="With --policy online: order of the queue (arrival, narrowest, shortest or least-work)."
        ),
    ] = "arrival",
    pick: Annotated[
        str,
        typer.Option(
            help="With --policy online: choice of GPUs: pack, spread, or whole-or-wait (split only jobs "
            "that fit no server)."
        ),
    ] = "pack",
    backfill: Annotated[
        str,
        typer.Option(
            help="With --policy online: which jobs may overtake one that cannot start: none, any, or "
            "reserve (EASY backfilling)."
        ),
    ] = "none",
    admission: Annotated[
        str,
        typer.Option(
            help="With --policy online: start jobs always, or split them only if cheaper-than-waiting."
        ),
    ] = "always",
    json: JsonFlag = False,
) -> None:
    """Contention, bandwidth and iteration time of placed ring-all-reduce jobs; or a schedule for them.

    CASE.json: `{"cluster": {"inter_bandwidth": 1250, "intra_bandwidth": 50000, "reduce_speed": 20000, "alpha": 0.2,
    "xi1": 1, "xi2": 0.001, "servers": [4, 4]}, "jobs": {"a": {"gpus": 4, "gradient_size": 100,
    "forward_s_per_sample": 0.0002, "batch_size": 64, "backward_s": 0.02, "iterations": 1000}}, "placement": {"a":
    {"0": 2, "1": 2}}}`. Jobs may have an `arrival_s` for `--policy online`.

    Example: `cotenant plan ring case.json --json`
    """
    from profiling.errors import InputError
    from profiling.files import read_json
    from scheduling.ring.case import RingCase
    from scheduling.ring.engine import Execution

    if not policy:
        no_effect(context, "without --policy", "slot_s")
    if policy != "online":
        no_effect(context, "without --policy online", "order", "pick", "backfill", "admission")
    if duty_cycle and (policy or not clamp):
        raise InputError(
            "--duty-cycle is for placed jobs in the clamped form",
            expected="neither --policy nor --literal with it",
        )
    queue = {"order": order, "pick": pick, "backfill": backfill, "admission": admission}
    body = read_json(case)
    if policy and isinstance(body, dict):
        body = {key: value for key, value in body.items() if key != "placement"}
    read = RingCase.from_mapping(body)
    if policy:
        _schedule(read, policy, Execution(read.fabric, clamp, slot_s or None), queue, json)
    elif read.placement is None:
        raise InputError(
            "the case lacks 'placement'",
            expected="server index → GPUs for every job",
            hint="or let --policy sjf-bco place them",
        )
    else:
        _timings(read, clamp, duty_cycle, json)


def _timings(case: RingCase, clamp: bool, duty_cycle: bool, json: bool) -> None:
    from scheduling.ring.duty import duty_cycle_timings
    from scheduling.ring.model import ring_timings

    assert case.placement is not None
    if duty_cycle:
        timings = duty_cycle_timings(case.cluster, case.jobs, case.placement, fabric=case.fabric)
    else:
        timings = ring_timings(case.cluster, case.jobs, case.placement, fabric=case.fabric, clamp=clamp)
    if json:
        print_json(
            {
                "jobs": {
                    name: {
                        "contention": int(p) if (p := timing.contention) == int(p) else p,
                        "bandwidth": timing.bandwidth,
                        "iteration_time_s": timing.iteration_time_s,
                    }
                    for name, timing in timings.items()
                }
            }
        )
        return
    numbers = ("contention", "bandwidth", "iteration\ntime (s)")
    table = plain_table("job", "servers", *numbers, right=numbers)
    for name, timing in timings.items():
        table.add_row(
            name,
            _servers(case.placement[name]),
            f"{timing.contention:g}",
            f"{timing.bandwidth:.6g}",
            f"{timing.iteration_time_s:.6g}",
        )
    console().print(table)


def _schedule(
    case: RingCase, policy: str, execution: Execution, queue: Mapping[str, str], json: bool
) -> None:
    from profiling.errors import InputError
    from scheduling.ring.catalogue import ONLINE, plan
    from scheduling.ring.online import OnlineConfig, RingArrival, run_online
    from scheduling.ring.search import lower_bound_s

    jobs = list(case.jobs.values())
    if policy == ONLINE:
        config = OnlineConfig(**queue)
        arrivals = [RingArrival(job, case.arrivals_s.get(job.name, 0.0)) for job in jobs]
        result = run_online(case.cluster, arrivals, config, execution)
        schedule = result.schedule
        times_s = {a.arrival_s for a in arrivals}
        bound_s = max(
            t
            - min(times_s)
            + lower_bound_s(case.cluster, [a.job for a in arrivals if a.arrival_s >= t], execution)
            for t in times_s
        )
        makespan_s, mean_s = result.makespan_s, result.summary()["mean_jct_s"]
    else:
        if case.arrivals_s:
            raise InputError(
                "arrival_s is for jobs that arrive", expected="--policy online with it", got=policy
            )
        schedule, bound_s = plan(policy, case.cluster, jobs, execution)
        makespan_s, mean_s = schedule.makespan_s, schedule.mean_completion_s
    if json:
        print_json(
            {
                "policy": policy,
                "makespan_s": makespan_s,
                "mean_completion_s": mean_s,
                "lower_bound_s": bound_s,
                "jobs": {
                    assignment.job: {
                        "start_s": assignment.start_s,
                        "end_s": assignment.end_s,
                        "placement": {str(server): gpus for server, gpus in assignment.placement.items()},
                    }
                    for assignment in schedule.assignments
                },
            }
        )
        return
    numbers = ("start (s)", "end (s)")
    table = plain_table("job", "servers", *numbers, right=numbers)
    for assignment in schedule.assignments:
        table.add_row(
            assignment.job,
            _servers(assignment.placement),
            f"{assignment.start_s:.4g}",
            f"{assignment.end_s:.4g}",
        )
    console().print(table)
    console().print(
        f"makespan {makespan_s:.4g} s, mean completion {mean_s:.4g} s, no schedule under {bound_s:.4g} s"
    )


def _servers(placement: Placement) -> str:
    return ", ".join(f"{gpus} on {server}" for server, gpus in sorted(placement.items()))
