"""`cotenant demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.output import JsonFlag, console, plain_table, print_json, progress

_POLICIES = {
    "exclusive": "one job per GPU (exclusive)",
    "blind": "shared where memory fits (blind)",
    "isacpp": "shared by prediction (isacpp)",
}
_NEXT = """\
Now your own model. A factory returns the module and one batch of inputs:
  cotenant capture my_module:my_model --batch-size 32 -o my-model.json
  cotenant predict --device a100 --job my-model.json --job resnet18-cifar
  cotenant place --cluster small-mixed --job my-model.json"""


def command(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the job stream.")] = 0,
    plot: Annotated[Path, typer.Option(help="Picture to write: .svg, .png or .pdf.")] = Path("out/demo.svg"),
    as_json: JsonFlag = False,
) -> None:
    """Predict which pairs of eight models share a GPU well, and run a dozen jobs on four GPUs with and without sharing.

    All numbers come from the default predictor; nothing is measured. The picture shows which job ran on which
    GPU.

    Example: `cotenant demo --seed 1 --plot demo.png`
    """
    from profiling.figures import check_picture

    check_picture(plot)
    with progress() as bar:
        task = bar.add_task("loading the predictor", total=4)
        from predictor import load_predictor
        from scheduling.demo import demo_cluster, demo_jobs, draw, pairs, run_policies, starts

        predictor = load_predictor("default")
        bar.update(task, advance=1, description="capturing eight models")
        ranked = pairs(predictor)
        bar.update(task, advance=1, description="simulating a dozen jobs under three policies")
        jobs = demo_jobs(predictor, seed=seed)
        results = run_policies(jobs, demo_cluster(), predictor, seed)
        placed = starts(results["isacpp"])
        bar.update(task, advance=1, description="drawing")
        draw(results, plot)
        bar.update(task, advance=1)
    if as_json:
        print_json(
            {
                "device": ranked[0].jobs.device,
                "pairs": [
                    {
                        "jobs": [str(w) for w in pair.jobs.workloads],
                        "slowdown": list(pair.slowdown),
                        "throughput_ratio": pair.throughput_ratio,
                        "memory_upper_bytes": pair.memory_upper_bytes,
                        "fits": pair.fits,
                    }
                    for pair in ranked
                ],
                "placements": [
                    {
                        "id": placement.job.id,
                        "job": str(placement.job.job.workload),
                        "start_s": placement.job.started_s,
                        "gpu": placement.gpu,
                        "beside": [other.id for other in placement.beside],
                    }
                    for placement in placed
                ],
                "policies": {name: result.to_json() for name, result in results.items()},
                "plot": str(plot),
            }
        )
        return
    _print(ranked, placed, results, plot)


def _print(ranked: list[Any], placed: list[Any], results: dict[str, Any], plot: Path) -> None:
    out = console()
    _print_pairs(out, ranked)
    out.print(_starts_table(placed))
    out.print(_policies_table(results))
    hours = {name: results[name].to_json()["gpu_hours"] for name in _POLICIES}
    than_alone, than_blind = (_compared(hours["isacpp"], hours[name]) for name in ("exclusive", "blind"))
    out.print(
        f"\nSharing by prediction took {than_alone} GPU hours than one job per GPU,\n"
        f"{than_blind} than sharing wherever memory fits. A dozen jobs prove little:\n"
        "docs/scheduling-results.md has traces of hundreds of jobs, with measured pairs.",
        highlight=False,
    )
    out.print(f"Picture: {plot.resolve()}\n", highlight=False, soft_wrap=True)
    out.print(_NEXT, highlight=False, soft_wrap=True)


def _print_pairs(out: Any, ranked: list[Any]) -> None:
    from profiling.devices import get_device

    device = ranked[0].jobs.device
    fitting = [pair for pair in ranked if pair.fits]
    chosen = [fitting[0], fitting[-1], *[pair for pair in ranked if not pair.fits][:1]]
    table = plain_table(
        "job",
        "slowdown",
        "work done\ntogether",
        "memory\nat most",
        "share the GPU?",
        right=("slowdown", "work done\ntogether", "memory\nat most"),
        title=f"1. Two jobs on one {device}, predicted from their computation graphs",
    )
    for pair in chosen:
        verdict = (
            "no: memory does not fit"
            if not pair.fits
            else "yes"
            if pair.throughput_ratio > 1.2
            else "no: little gained"
        )
        table.add_row(
            "\n".join(w.model for w in pair.jobs.workloads),
            "\n".join(f"{s:.2f}" for s in pair.slowdown),
            f"{pair.throughput_ratio:.2f}",
            f"{pair.memory_upper_bytes / 2**30:.1f} GiB",
            verdict + "\n",
        )
    out.print(table)
    out.print(
        f"Work done together: throughput in the pair over throughput alone, summed over\n"
        f"both jobs; 1.00 is no more than taking turns. {len(fitting)} of the {len(ranked)} pairs of eight\n"
        f"models fit in {get_device(device).memory_bytes / 2**30:.0f} GiB.",
        highlight=False,
    )


def _starts_table(placed: list[Any]) -> Any:
    table = plain_table(
        "job",
        "model",
        "starts",
        "GPU",
        "beside",
        right=("starts",),
        title="\n2. A dozen jobs on two V100 and two P100, shared by prediction (simulated)",
    )
    for placement in placed:
        table.add_row(
            placement.job.id,
            placement.job.job.workload.model,
            f"{placement.job.started_s / 60:.0f} min",
            placement.gpu,
            ", ".join(f"{other.id} {other.job.workload.model}" for other in placement.beside) or "-",
        )
    return table


def _policies_table(results: dict[str, Any]) -> Any:
    table = plain_table(
        "policy",
        "GPU hours",
        "mean completion",
        "last job done",
        right=("GPU hours", "mean completion", "last job done"),
        title="\n3. The same jobs, three policies (simulated, cost of sharing off by 15 %)",
    )
    for name, words in _POLICIES.items():
        body = results[name].to_json()
        table.add_row(
            words,
            f"{body['gpu_hours']:.2f}",
            f"{body['mean_jct_s'] / 60:.0f} min",
            f"{body['makespan_s'] / 60:.0f} min",
        )
    return table


def _compared(value: float, other: float) -> str:
    return f"{other - value:.2f} fewer" if value < other else f"{value - other:.2f} more"
