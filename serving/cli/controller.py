"""`cotenant controller`: schedule the jobs of another system by the service."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    rich_markup_mode="markdown",
    no_args_is_help=True,
    help="Connect Slurm to a running service.\n\nExample: `cotenant controller slurm --service http://127.0.0.1:8080`",
)


@app.callback()
def group() -> None:
    pass


@app.command("slurm")
def slurm(
    service: Annotated[str, typer.Option(help="Address of the service.")] = "http://127.0.0.1:8080",
    token: Annotated[
        str | None, typer.Option(envvar="COTENANT_TOKEN", help="Token of scope `place`.")
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="TYPE=CATALOGUE_NAME for a GPU type in Slurm that is not recognised; may be repeated."
        ),
    ] = None,
    period: Annotated[float, typer.Option(help="Seconds between checks of the queue.")] = 1.0,
) -> None:
    """Assign jobs held by `job_submit.lua` to the node that the service ranks first. Runs until stopped.

    Example: `cotenant controller slurm --device big=a100-80gb`
    """
    import logging

    from profiling.errors import InputError
    from serving.integrations.ask import ServiceClient
    from serving.integrations.slurm import SlurmConfig, run

    pairs = [text.partition("=") for text in device or []]
    if any(not (kind and name) for kind, _, name in pairs):
        raise InputError("--device is not a pair", expected="TYPE=CATALOGUE_NAME", got=device)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        run(ServiceClient(service, token), SlurmConfig(period_s=period, devices={k: n for k, _, n in pairs}))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
