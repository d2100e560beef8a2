"""`cotenant plan pipeline`: split a model into stages over many workers."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiling.errors import InputError
from serving.cli.given_options import no_effect
from serving.cli.output import JsonFlag, console, duration, headline, plain_table, print_json

if TYPE_CHECKING:
    from scheduling.pipeline.partition import Partition
    from scheduling.pipeline.plan import Plan


def pipeline(
    context: typer.Context,
    graph: Annotated[
        str,
        typer.Argument(help="A PipeDream graph.txt, or a job SPEC, as for `predict`.", metavar="GRAPH"),
    ],
    workers: Annotated[
        list[int], typer.Option(help="Workers per group, innermost first: `4 4` is 4 machines of 4.")
    ],
    bandwidth: Annotated[list[float], typer.Option(help="Bytes per second on each level, innermost first.")],
    activation_compression_ratio: Annotated[
        float | None,
        typer.Option(
            help="Compression factor of activations on the wire (1: none). Without it, their transfer takes no time."
        ),
    ] = None,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            help="Memory of one worker, bytes (default: that of --device less a process's context; without it, no limit)."
        ),
    ] = None,
    straight: Annotated[
        bool, typer.Option("--straight", help="No replication: one worker per stage.")
    ] = False,
    fewer_machines: Annotated[
        bool,
        typer.Option(
            "--fewer-machines", help="With --compat: allow idle workers (always allowed without it)."
        ),
    ] = False,
    compat: Annotated[
        bool, typer.Option("--compat", help="Reproduce PipeDream's public optimizer exactly.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Device type of the workers, e.g. v100; a SPEC is timed for it.")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(help="Plan whole steps: gpipe, 1f1b, interleaved, zb-h1 (with a flush) or pipedream."),
    ] = None,
    granularity: Annotated[
        str,
        typer.Option(
            help="Where a zoo or captured model may be cut: before a block, a module, or any operator (a profile: "
            "between its nodes)."
        ),
    ] = "block",
    microbatches: Annotated[
        int, typer.Option(help="Number of microbatches per step, or drawn by --plot.")
    ] = 8,
    chunks: Annotated[int, typer.Option(help="Model chunks per worker (interleaved).")] = 2,
    depth: Annotated[
        int | None,
        typer.Option(help="With a --schedule that has a flush: pipeline depth (default: searched for)."),
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="With --schedule: recompute activations in the backward pass.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the schedule to this .svg, .png or .pdf.")] = None,
    json: JsonFlag = False,
) -> None:
    """Cut a model into pipeline stages and replicate them so that minibatches finish as fast as possible.

    Example: `cotenant plan pipeline vgg16.graph.txt --workers 4 4 --bandwidth 12e9 1.25e9
    --activation-compression-ratio 1 --memory-limit 16e9`

    With a flush: `cotenant plan pipeline bert-base-squad --device v100 --workers 4 --bandwidth 10e9 --schedule zb-h1
    --plot plan.svg`
    """
    from models.features import CONTEXT_BYTES
    from profiling.devices import get_device
    from profiling.figures import check_picture
    from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
    from scheduling.pipeline.inputs import read_input
    from scheduling.pipeline.partition import partition
    from scheduling.pipeline.plan import Plan, plan

    if plot is not None:  # before a plan that may take minutes
        check_picture(plot)
    if schedule is None and plot is None:
        no_effect(context, "without --schedule or --plot", "microbatches")
    if schedule != "interleaved":
        no_effect(context, "without --schedule interleaved", "chunks")
    given = read_input(graph, device, as_published=compat and schedule is None)
    if given.times is None:
        no_effect(context, "on a profile, which is cut between its nodes", "granularity")
    if memory_limit is None and device is not None:
        of_device = get_device(device)
        memory_limit = of_device.memory_bytes - (0.0 if of_device.is_cpu else CONTEXT_BYTES)
    cluster = PipelineCluster(tuple(workers), tuple(bandwidth), memory_limit)
    options = PartitionOptions(activation_compression_ratio, straight, fewer_machines)
    chosen: Plan | Partition
    if schedule is not None:
        if compat or straight or fewer_machines or activation_compression_ratio is not None:
            raise InputError(
                "--schedule cannot be combined with these options",
                expected="none of --compat, --straight, --fewer-machines, --activation-compression-ratio",
            )
        chosen = plan(
            given.model,
            cluster,
            schedule,
            microbatches,
            recompute=recompute,
            times=given.times,
            chunks=chunks,
            depth=depth,
            granularity=granularity,
        )
    else:
        if depth is not None or recompute or (fewer_machines and not compat):
            raise InputError(
                "an option needs another one",
                expected="--depth and --recompute with --schedule, --fewer-machines with --compat",
            )
        chosen = partition(given.states(granularity), cluster, options, compat=compat)
    timeline = None
    if plot is not None:
        timeline = chosen.timeline if isinstance(chosen, Plan) else chosen.timeline(microbatches)
    never = [given.never_measured] if given.never_measured else []
    if json:
        print_json(chosen.to_json() | {"never_measured": never})
    else:
        _print(chosen)
        for reason in never:
            console().print(reason, highlight=False, soft_wrap=True)
        unnamed = chosen.split_spec is None and len(chosen.stages) > 1
        if schedule is None and granularity == "operator" and unnamed:
            console().print(
                "torch.distributed.pipelining cuts before modules; --granularity block or module names them."
            )
    if plot is not None and timeline is not None:
        from scheduling.pipeline.gantt import draw

        draw(timeline, plot, title=f"{chosen.name}, {schedule or 'pipedream'}")
        print(f"wrote {plot}", file=sys.stderr)


def _print(chosen: Plan | Partition) -> None:
    from scheduling.pipeline.plan import Plan

    if isinstance(chosen, Plan):
        _print_steps(chosen)
    else:
        _print_partition(chosen)
    if chosen.split_spec:
        entries = ", ".join(f'"{module}": SplitPoint.{point}' for module, point in chosen.split_spec.items())
        console().print(
            f"For torch.distributed.pipelining.pipeline: split_spec={{{entries}}}",
            highlight=False,
            soft_wrap=True,
        )
    console().print(f"Bottleneck: {chosen.bottleneck}.")
    if idle := chosen.workers - chosen.workers_used:
        console().print(f"{idle} of {chosen.workers} workers would not help and stay idle.")
    if not isinstance(chosen, Plan) and chosen.search in ("branches merged", "execution order"):
        console().print(f"Too many cuts to search exhaustively; searched: {chosen.search}.")


def _print_steps(plan: Plan) -> None:
    out = console()
    out.print(
        headline(
            plan.name,
            f", {plan.schedule}: {duration(plan.step_time_s, 4)} per step, bubble {100 * plan.bubble_ratio:.1f} %",
        )
    )
    numbers = ("forward\n(ms)", "backward\n(ms)", "in\nflight", "memory per\nworker")
    table = plain_table("stage", "devices", *numbers, right=numbers)
    for number, stage in enumerate(plan.stages, start=1):
        table.add_row(
            str(number),
            ", ".join(map(str, stage.devices)),
            f"{1e3 * stage.forward_s:.4g}",
            f"{1e3 * stage.backward_s:.4g}",
            str(stage.in_flight),
            _bytes(stage.memory_bytes),
        )
    out.print(table)


def _print_partition(plan: Partition) -> None:
    out = console()
    out.print(
        headline(
            plan.name,
            f": {duration(plan.bottleneck_s, 4)} per minibatch, {plan.speedup:.2f} times as fast as "
            f"data parallel ({duration(plan.data_parallel_s, 4)})",
        )
    )
    numbers = ("compute\n(ms)", "in\nflight", "memory per\nworker")
    table = plain_table("stage", "replicas", "nodes", *numbers, right=numbers)
    for number, stage in enumerate(plan.stages, start=1):
        nodes = stage.nodes[0] if len(stage.nodes) == 1 else f"{stage.nodes[0]} … {stage.nodes[-1]}"
        replicas = str(stage.replicas)
        if sum(count > 1 for count in stage.level_replicas) > 1:
            replicas += " = " + " x ".join(map(str, stage.level_replicas))
        table.add_row(
            str(number),
            replicas,
            f"{nodes} ({len(stage.nodes)})",
            f"{1e3 * stage.compute_s:.4g}",
            str(stage.in_flight),
            _bytes(stage.memory_bytes),
        )
    out.print(table)


def _bytes(count: float) -> str:
    unit = min(int(math.log10(count) // 3), 4) if count >= 1 else 0
    return f"{count / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"
