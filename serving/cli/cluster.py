"""`cotenant cluster`: write, check and import cluster.yaml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from serving.cli.controller import Devices, devices_by_type
from serving.cli.given_options import no_effect
from serving.cli.groups import group
from serving.cli.output import Force, JsonFlag, console, counted, plain_table, print_json

app = group(
    "Write a sample cluster.yaml, check one, or import it from other tools.\n\nExample: `cotenant cluster init`"
)
_COUNTED = {"nodes": "node", "gpus": "GPU", "tenants": "tenant", "links": "link"}
Cluster = Annotated[
    str, typer.Argument(help="cluster.yaml, or the name of a built-in cluster (`small-mixed`).")
]


@app.command()
def init(
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")] = Path("cluster.yaml"),
    force: Force = False,
) -> None:
    """Write a sample cluster.yaml with a comment beside every field.

    Example: `cotenant cluster init -o cluster.yaml`
    """
    from profiling.files import check_new, write_whole
    from scheduling.clusters import cluster_text

    check_new(out, force)
    write_whole(out, cluster_text("sample"))
    console().print(
        f"wrote {out}; check it with: cotenant cluster validate {out}", highlight=False, soft_wrap=True
    )


@app.command()
def validate(cluster: Cluster, as_json: JsonFlag = False) -> None:
    """Check a cluster: its structure, every device and model, and the links.

    The first mistake is reported with exit code 2.

    Example: `cotenant cluster validate cluster.yaml`
    """
    from scheduling.clusters import load_cluster
    from scheduling.clusters.checks import check_cluster, summary

    loaded = load_cluster(cluster)
    notes, counts = check_cluster(loaded), summary(loaded)
    if as_json:
        print_json({**counts, "notes": notes})
        return
    out = console()
    out.print(
        f"{cluster}: {', '.join(counted(counts[name], singular) for name, singular in _COUNTED.items())}",
        highlight=False,
    )
    table = plain_table("device", "GPUs", right=("GPUs",))
    for device, number in counts["by_device"].items():
        table.add_row(device, str(number))
    out.print(table)
    for note in notes:
        out.print(f"note: {note}", highlight=False)


@app.command("list")
def list_clusters(as_json: JsonFlag = False) -> None:
    """List the built-in clusters; every command that takes a cluster accepts these names.

    Example: `cotenant cluster list`
    """
    from scheduling.clusters import cluster_names, load_cluster
    from scheduling.clusters.checks import summary

    clusters = {name: summary(load_cluster(name)) for name in cluster_names()}
    if as_json:
        print_json(clusters)
        return
    table = plain_table("cluster", "nodes", "GPUs", "devices", right=("nodes", "GPUs"))
    for name, counts in clusters.items():
        devices = ", ".join(f"{number} {device}" for device, number in counts["by_device"].items())
        table.add_row(name, str(counts["nodes"]), str(counts["gpus"]), devices)
    console().print(table)


@app.command()
def show(
    cluster: Cluster,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON body of PUT /v1/cluster, with counts expanded.")
    ] = False,
) -> None:
    """Print a cluster as YAML or as JSON.

    Example: `cotenant cluster show cluster.yaml --json | curl -X PUT -H 'content-type: application/json' -d @- localhost:8080/v1/cluster`
    """
    from scheduling.clusters import load_cluster
    from scheduling.clusters.writing import to_yaml

    loaded = load_cluster(cluster)
    if as_json:
        print_json(loaded.to_mapping())
    else:
        sys.stdout.write(to_yaml(loaded))


@app.command("import")
def import_(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="nvidia-smi, sinfo, scontrol or kubectl.")],
    file: Annotated[Path, typer.Argument(help="Output of that tool; `-` reads standard input.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write (default: standard output).")
    ] = None,
    device: Devices = None,
    node: Annotated[str, typer.Option(help="Name of the node; nvidia-smi prints none.")] = "node",
    force: Force = False,
) -> None:
    """Make a cluster.yaml from the output of `nvidia-smi`, Slurm or Kubernetes.

    Running jobs are not imported, except annotated pods (`kubectl get nodes,pods -A -o json`).

    Examples:

    `nvidia-smi --query-gpu=index,name,memory.total,mig.mode.current --format=csv | cotenant cluster import nvidia-smi -`

    `sinfo -N -o '%N %G' | cotenant cluster import sinfo - -o cluster.yaml`

    `scontrol show nodes --json | cotenant cluster import scontrol - -o cluster.yaml`

    `kubectl get nodes -o json | cotenant cluster import kubectl - -o cluster.yaml`
    """
    from profiling.errors import InputError
    from profiling.files import check_new, write_whole
    from scheduling.clusters.checks import summary, unknown_types
    from scheduling.clusters.importers import check_source, import_cluster
    from scheduling.clusters.writing import to_yaml

    check_source(source)
    if out is not None:
        check_new(out, force)
    if source != "nvidia-smi":
        no_effect(context, f"with {source}", "node")
    devices = devices_by_type(device)
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"no file at {file}", expected=f"the output of {source}, or - for stdin") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not text", expected=f"the output of {source}", got=str(error)) from None
    cluster = import_cluster(source, text, devices, node)
    for name, number in unknown_types(cluster).items():
        typer.echo(f"{counted(number, 'GPU')} of a type that is not in the catalogue: {name}", err=True)
    if out is None:
        sys.stdout.write(to_yaml(cluster))
        return
    write_whole(out, to_yaml(cluster))
    counts = summary(cluster)
    console().print(
        f"wrote {out}: {counted(counts['nodes'], 'node')}, {counted(counts['gpus'], 'GPU')}",
        highlight=False,
        soft_wrap=True,
    )
