"""`cotenant demo`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from serving.cli.output import JsonFlag, console, print_json, progress


def command(
    seed: Annotated[int, typer.Option(min=0, help="Of the stream of jobs.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Capture two models, predict how they share a GPU, and place a dozen jobs on a small mixed cluster.

    Everything comes from the default predictor; nothing is measured here. Example: `cotenant demo`
    """
    with progress() as bar:
        task = bar.add_task("loading the predictor", total=5)
        from predictor import load_predictor
        from profiling.capture import graph_for
        from profiling.workload import ColocationSet, Workload
        from scheduling.demo import demo_cluster, demo_jobs, rules, stream

        predictor = load_predictor("default")
        pair = (
            Workload.parse("resnet18-cifar:batch_size=64"),
            Workload.parse("lstm-wikitext2:batch_size=20"),
        )
        bar.update(task, advance=1, description="capturing two models")
        graphs = [graph_for(w) for w in pair]
        bar.update(task, advance=1, description="predicting how they share a V100")
        prediction = predictor.predict(ColocationSet("v100", pair))
        bar.update(task, advance=1, description="placing a dozen jobs")
        cluster = demo_cluster()
        jobs = demo_jobs(predictor, seed=seed)
        placed = list(stream(jobs, cluster, predictor))
        bar.update(task, advance=1, description="comparing with simpler rules")
        compared = rules(jobs, cluster, predictor, seed)
        bar.update(task, advance=1)
    if as_json:
        print_json(
            {
                "graphs": [g.summary() for g in graphs],
                "prediction": prediction.to_json(),
                "placements": [
                    {"job": str(p.job.workload), "id": p.job.id, **p.decision.to_json()} for p in placed
                ],
                "rules": {name: result.to_json() for name, result in compared.items()},
            }
        )
        return
    _print(graphs, prediction, placed, compared)


def _print(graphs: list[Any], prediction: Any, placed: list[Any], compared: dict[str, Any]) -> None:
    from rich.table import Table

    from serving.cli.predict import show

    out = console()
    table = Table(title="1. Two models as computation graphs (no weights, no GPU)")
    for name in (
        "model",
        "operators",
        "layers",
        "parameters",
        "GFLOP a step",
        "memory traffic a step",
        "most frequent operators",
    ):
        table.add_column(name, justify="left" if name.startswith(("model", "most")) else "right")
    for graph in graphs:
        s = graph.summary()
        kinds = ", ".join(list(s["kinds"])[:3])
        table.add_row(
            s["name"],
            str(s["operators"]),
            str(s["layers"]),
            f"{s['parameter_count']:,}",
            f"{(s['forward_flops'] + s['backward_flops']) / 1e9:.1f}",
            f"{s['step_bytes'] / 2**30:.2f} GiB",
            kinds,
        )
    out.print(table)
    out.print("\n[italic]2. How they share a GPU (90 % intervals in brackets)[/]")
    show(prediction)
    table = Table(title="\n3. A dozen jobs, one after another, on three V100, two P100 and a K80")
    for name in ("job", "model", "goes to", "done in", "why"):
        table.add_column(name, justify="right" if name == "done in" else "left")
    for one in placed:
        if one.decision.decision == "place":
            best = one.decision.ranked[0]
            table.add_row(
                one.job.id,
                str(one.job.workload),
                f"{best.node}/{best.gpu}",
                f"{best.finish_s / 60:.0f} min",
                "; ".join(best.reasons[1:]),
            )
        else:
            table.add_row(one.job.id, str(one.job.workload), "waits", "", "; ".join(one.decision.reasons))
    out.print(table)
    table = Table(
        title="\n4. The same stream under three rules (simulated; reality departs from the prediction by 15 %)"
    )
    for name in ("rule", "mean completion", "p99 completion", "makespan", "waiting", "out of memory"):
        table.add_column(name, justify="left" if name == "rule" else "right")
    words = {
        "exclusive": "exclusive: one job a GPU",
        "blind": "blind packing",
        "isacpp": "interference-aware (cotenant)",
    }
    for name, result in compared.items():
        r = result.to_json()
        table.add_row(
            words[name],
            *(f"{r[k] / 60:.0f} min" for k in ("mean_jct_s", "p99_jct_s", "makespan_s", "mean_queue_s")),
            str(r["out_of_memory"]),
        )
    out.print(table)
    out.print("\nNext: `cotenant predict --help`, `cotenant place --help`, `cotenant serve`.")
