"""`cotenant devices`: the GPU types that are known."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from serving.cli.groups import group
from serving.cli.output import JsonFlag, console, print_json, print_whole

app = group("Known GPU types.\n\nExample: `cotenant devices show v100`")

_LISTED = {"FP64": "fp64", "FP32": "fp32", "TF32": "tf32", "FP16": "fp16", "BF16": "bf16", "FP8": "fp8"}
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", help="YAML file of additional types; set COTENANT_DEVICES to use one in every command."
    ),
]


@app.command("list")
def list_types(file: FileOption = None, as_json: JsonFlag = False) -> None:
    """List all device types, and the devices of this machine.

    Example: `cotenant devices list --file my-gpus.yaml`
    """
    from profiling.devices import discover

    specs = list(_known(file).values())
    here = discover()
    if as_json:
        print_json({"devices": [asdict(s) for s in specs], "discovered": [asdict(s) for s in here]})
        return
    from rich.table import Table

    table = Table("device", "SMs", *_LISTED, "GiB", "GB/s", box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for s in specs:
        table.add_row(
            s.name,
            str(s.sm_count),
            *(_teraflops(s.peak_flops(p)) if s.supports(p) else "-" for p in _LISTED.values()),
            f"{s.memory_bytes / 2**30:.0f}",
            f"{s.memory_bandwidth_bytes_per_s / 1e9:.0f}",
        )
    print_whole(table)
    console().print("FP64 to FP8: dense peak in TFLOP/s, on tensor cores if the GPU has them")
    for s in here:
        console().print(
            f"here: {s.name} ({s.architecture}), {s.sm_count} units, {s.memory_bytes / 2**30:.1f} GiB"
        )
    if all(s.vendor != "nvidia" for s in here):
        console().print("here: no NVIDIA GPU (no driver found)")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Catalogue name, e.g. v100.")],
    file: FileOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the specifications of one type and their source.

    Example: `cotenant devices show rtx-3090 --json`
    """
    from profiling.devices import get_device
    from profiling.devices.catalogue import spelt

    known = _known(file)
    spec = known.get(spelt(name)) or get_device(name)
    if as_json:
        print_json(asdict(spec))
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in asdict(spec).items():
        table.add_row(key, _text(value))
    console().print(table, highlight=False)


def _teraflops(rate: float) -> str:
    return f"{rate / 1e12:.0f}" if rate >= 1e14 else f"{rate / 1e12:.3g}"


def _known(file: Path | None) -> dict[str, Any]:
    from profiling.devices import list_devices, load_device_file

    specs = {spec.name: spec for spec in list_devices()}
    if file is not None:
        specs.update({spec.name: spec for spec in load_device_file(file)})
    return specs


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)
