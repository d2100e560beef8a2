"""`cotenant place`: choose a GPU for one job on a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from serving.cli.given_options import only
from serving.cli.output import JsonFlag, bullets, console, headline, plain_table, print_json
from serving.cli.predict import FeedbackOption, corrected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduling.placement.decision import PlacementDecision, RankedGpu


def command(
    cluster: Annotated[
        str, typer.Option(help="cluster.yaml (see `cotenant cluster init`), or `small-mixed`, `sia-64`, ...")
    ],
    job: Annotated[
        list[str],
        typer.Option(help="Job SPEC `NAME[:key=value,...]`, as for `predict`."),
    ],
    iterations: Annotated[
        float | None, typer.Option(help="Number of steps that the job will run (default: one hour's worth).")
    ] = None,
    objective: Annotated[str, typer.Option(help="jct, interference or makespan.")] = "jct",
    max_slowdown: Annotated[
        float, typer.Option(help="Maximum predicted slowdown of any job on the GPU.")
    ] = 2.0,
    wait: Annotated[bool, typer.Option(help="Whether the answer may be to wait.")] = True,
    gpus: Annotated[int, typer.Option(help="Number of whole GPUs for a gang.")] = 1,
    limit: Annotated[int, typer.Option(help="Number of GPUs to rank.")] = 32,
    model: Annotated[
        str,
        typer.Option(
            help="Predictor: `default`, a folder, `models:/NAME@ALIAS`, or your own `module:PREDICTOR`."
        ),
    ] = "default",
    feedback: FeedbackOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Choose a GPU for a job: on every GPU, the tenants and the job are simulated until they finish.

    Exit code 1: it fits on no GPU, even alone; with --no-wait, also that no GPU can take it now.

    Example: `cotenant place --cluster cluster.yaml --job resnet18-cifar:batch_size=64 --iterations 20000`
    """
    from profiling.capture import local_workload
    from scheduling.beliefs.own import load_belief
    from scheduling.clusters import load_cluster
    from scheduling.placement.place import place
    from scheduling.placement.ranking import PlacementConfig

    spec = only("--job", job)
    config = PlacementConfig(
        objective=objective, max_slowdown=max_slowdown, wait=wait, limit=limit, gpus=gpus
    )
    snapshot, workload = load_cluster(cluster), local_workload(spec)
    belief = corrected(load_belief(model), feedback)
    decision = place(workload, iterations, snapshot, belief, config)
    if as_json:
        print_json(decision.to_json())
    else:
        _show(decision, spec)
    if not wait and decision.decision == "wait":
        raise typer.Exit(1)


def _show(decision: PlacementDecision, job: str) -> None:
    out = console()
    first = ""
    if decision.decision == "place":
        first = " on " + ", ".join(f"{node}/{gpu}" for node, gpu in _gpus(decision.ranked[0]))
    out.print(headline(decision.decision, f"{first}  {job}"))
    table = plain_table(
        "node",
        "GPU",
        "score",
        "done in",
        "why",
        right=("score", "done in"),
        title="best first (lowest score)",
    )
    for candidate in decision.ranked:
        on: dict[str, list[str]] = {}
        for node, gpu in _gpus(candidate):
            on.setdefault(node, []).append(gpu)
        table.add_row(
            "\n".join(on),
            "\n".join(", ".join(gpus) for gpus in on.values()),
            _score(candidate.score),
            f"{candidate.finish_s:.0f} s",
            "; ".join(candidate.reasons[1:]),
        )
    if decision.ranked:
        out.print(table)
    reasons = (*decision.reasons, *decision.never_measured)
    if reasons:
        out.print(bullets(reasons))


def _gpus(candidate: RankedGpu) -> Sequence[tuple[str, str]]:
    """(node, GPU) of every GPU that the job would get."""
    return candidate.gang or ((candidate.node, candidate.gpu),)


def _score(value: float) -> str:
    """Four significant digits, and no exponent: scores of `jct` are seconds."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
