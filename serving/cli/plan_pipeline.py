"""`cotenant plan pipeline`: a model cut into stages over many workers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from serving.cli.output import JsonFlag, console, print_json

if TYPE_CHECKING:
    from scheduling.pipeline.partition import Partition


def pipeline(
    graph: Annotated[
        str,
        typer.Argument(
            help="A PipeDream graph.txt, a captured graph.json, or a job SPEC of the zoo.", metavar="GRAPH"
        ),
    ],
    workers: Annotated[
        list[int], typer.Option(help="Workers per group, innermost first: `4 4` is 4 machines of 4.")
    ],
    bandwidth: Annotated[list[float], typer.Option(help="Bytes per second on each level, innermost first.")],
    activation_compression_ratio: Annotated[
        float | None,
        typer.Option(
            help="Activations shrink by this factor on the wire (1: as they are). Without it their time is left out."
        ),
    ] = None,
    memory_limit: Annotated[float | None, typer.Option(help="Bytes of one worker.")] = None,
    straight: Annotated[bool, typer.Option("--straight", help="No replicas: one worker a stage.")] = False,
    fewer_machines: Annotated[
        bool,
        typer.Option("--fewer-machines", help="With --compat: let workers idle (the default always may)."),
    ] = False,
    compat: Annotated[
        bool, typer.Option("--compat", help="Exactly what PipeDream's public optimizer answers.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Device type that a graph.json or a SPEC is timed for, e.g. v100.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Cut a model into pipeline stages and replicate them so that minibatches finish as fast as possible.

    Example: `cotenant plan pipeline vgg16.graph.txt --workers 4 4 --bandwidth 12e9 1.25e9
    --activation-compression-ratio 1 --memory-limit 16e9`
    """
    from scheduling.pipeline.cluster import PartitionOptions, PipelineCluster
    from scheduling.pipeline.inputs import read_states
    from scheduling.pipeline.partition import partition

    cluster = PipelineCluster(tuple(workers), tuple(bandwidth), memory_limit)
    options = PartitionOptions(activation_compression_ratio, straight, fewer_machines)
    space = read_states(graph, device, as_published=compat)
    plan = partition(space, cluster, options, compat=compat)
    if json:
        print_json(plan.to_json())
    else:
        _print(plan)


def _print(plan: Partition) -> None:
    from rich.table import Table

    out = console()
    out.print(
        f"[bold]{plan.name}[/]: {plan.bottleneck_s:.6g} s per minibatch, {plan.speedup:.3f} times data parallel"
        f" ({plan.data_parallel_s:.6g} s)"
    )
    table = Table("stage", "replicas", "nodes", "compute (s)", "in flight", "memory per worker")
    for number, stage in enumerate(plan.stages, start=1):
        nodes = stage.nodes[0] if len(stage.nodes) == 1 else f"{stage.nodes[0]} … {stage.nodes[-1]}"
        replicas = str(stage.replicas)
        if sum(count > 1 for count in stage.level_replicas) > 1:
            replicas += " = " + " x ".join(map(str, stage.level_replicas))
        table.add_row(
            str(number),
            replicas,
            f"{nodes} ({len(stage.nodes)})",
            f"{stage.compute_s:.4g}",
            str(stage.in_flight),
            _bytes(stage.memory_bytes),
        )
    out.print(table)
    out.print(f"Bottleneck: {plan.bottleneck}.")
    if plan.workers_used < plan.workers:
        out.print(
            f"{plan.workers - plan.workers_used} of {plan.workers} workers would not help and stay idle."
        )
    if plan.search != "all cuts":
        out.print(f"The model has too many cuts to try them all; tried: {plan.search}.")


def _bytes(count: float) -> str:
    unit = min(int(math.log10(count) // 3), 4) if count >= 1 else 0
    return f"{count / 1000**unit:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[unit]}"
