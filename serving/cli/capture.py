"""`cotenant capture`: turn a model into its computation graph."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.output import JsonFlag, console, counted, print_json

_UNITS = ("", "K", "M", "G", "T", "P")


def command(
    model: Annotated[
        str,
        typer.Argument(help="Zoo name or SPEC, FILE.onnx, FILE.graph.txt (PipeDream), or module:factory."),
    ],
    batch_size: Annotated[int | None, typer.Option(help="Samples per forward/backward pass.")] = None,
    sequence_length: Annotated[int | None, typer.Option(help="Tokens or frames per sample.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32, amp, fp16, bf16, fp8 or fp64.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="sgd, momentum, adam, adamw, rmsprop, adagrad or none.")
    ] = None,
    frozen_prefix: Annotated[
        int | None, typer.Option(help="Number of leading atomic layers to freeze.")
    ] = None,
    gradient_accumulation: Annotated[int | None, typer.Option(help="Passes per optimiser step.")] = None,
    activation_checkpointing: Annotated[
        bool | None, typer.Option(show_default=False, help="Recompute activations in the backward pass.")
    ] = None,
    fold: Annotated[bool, typer.Option("--fold", help="Fold repeated layers into one with a count.")] = False,
    output: Annotated[Path | None, typer.Option("--out", "-o", help="Write the graph as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the graph: .svg, .png or .pdf.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Turn a model into the computation graph of one training step, without running it or needing a GPU.

    `module:factory` runs local code. The factory returns `(module, inputs)`, `(module, inputs, loss)` or a
    `TrainingJob`; `batch_size`, `sequence_length` and `image_size` are passed if it accepts them.

    Example: `cotenant capture resnet50-imagenet --batch-size 64 --precision amp --plot resnet50.svg`
    """
    from profiling.capture import fold_repeats, graph_for, register_graph
    from profiling.workload import Workload

    # A colon separates the options in a zoo SPEC, and the factory in module:factory.
    base = Workload.parse(model) if "=" in model else Workload(model=model)
    given: dict[str, Any] = {
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "precision": precision,
        "optimizer": optimizer,
        "frozen_prefix": frozen_prefix,
        "gradient_accumulation": gradient_accumulation,
        "activation_checkpointing": activation_checkpointing,
    }
    workload = Workload.from_mapping(
        {**base.to_mapping(), **{key: value for key, value in given.items() if value is not None}}
    )
    graph = graph_for(workload, local=True)
    if fold:
        graph = fold_repeats(graph)
    register_graph(graph)  # so that its hash names it in a job SPEC
    if output is not None:
        graph.save(output)
    if plot is not None:
        from profiling.capture.plot import plot_graph

        plot_graph(graph, plot)
    if as_json:
        print_json(graph.summary())
        return
    _print(graph)
    for path in filter(None, (output, plot)):
        console().print(f"wrote {path}", highlight=False)


def _print(graph: Any) -> None:
    from rich.table import Table

    summary = graph.summary()
    table = Table(box=None, show_header=False, pad_edge=False)
    options = ", ".join(
        f"{counted(len(value), 'layer')} frozen" if key == "frozen_layers" else f"{key} {value}"
        for key, value in graph.options.items()
        if value not in (0, 1, False, None)
    )
    table.add_row("model", f"{graph.name} ({graph.source}), batch {graph.batch_size}")
    table.add_row("options", options)
    table.add_row(
        "operators",
        f"{summary['operators']} in {summary['nodes']} nodes, {summary['edges']} tensors between them",
    )
    table.add_row("parameters", f"{graph.parameter_count:,} in {counted(summary['layers'], 'atomic layer')}")
    table.add_row(
        "FLOPs", f"{_si(graph.forward_flops).rstrip()} forward, {_si(graph.backward_flops).rstrip()} backward"
    )
    table.add_row(
        "traffic", f"{_si(graph.step_bytes)}B per step, {graph.arithmetic_intensity:.1f} FLOPs per byte"
    )
    table.add_row(
        "held memory",
        f"{_si(graph.parameter_bytes)}B parameters, {_si(graph.gradient_bytes)}B gradients, "
        f"{_si(graph.optimizer_state_bytes)}B optimiser state",
    )
    table.add_row("activations", f"{_si(graph.activation_bytes)}B at the peak")
    table.add_row("kernels", f"about {graph.kernel_count:.0f} per step")
    table.add_row("tensor cores", f"{100 * graph.tensor_core_ratio:.0f} % of FLOPs (by type and shape)")
    table.add_row("host input", f"{_si(graph.host_input_bytes)}B per step")
    table.add_row("kinds", ", ".join(f"{kind} {count}" for kind, count in summary["kinds"].items()))
    table.add_row("hash", graph.content_hash[:16])
    console().print(table, highlight=False)


def _si(value: float) -> str:
    step = 0
    while value >= 1000 and step < len(_UNITS) - 1:
        value /= 1000
        step += 1
    return f"{value:.3g} {_UNITS[step]}"
