"""`cotenant controller`: schedule the jobs of another system by the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from serving.cli.given_options import no_effect
from serving.cli.groups import group

ServiceUrl = Annotated[str, typer.Option(help="Address of the service.")]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        help="TYPE=CATALOGUE_NAME for a GPU type that is not recognised (`gpu=...` for GPUs to which Slurm gives no "
        "type); may be repeated."
    ),
]
app = group(
    "Connect Slurm or Kubernetes to a running service.\n\n"
    "Example: `cotenant controller slurm --service http://127.0.0.1:8080`"
)


@app.command("slurm")
def slurm(
    service: ServiceUrl = "http://127.0.0.1:8080",
    token: Annotated[
        str | None,
        typer.Option(envvar="COTENANT_TOKEN", help="Token of scope `place`, or `admin` with --upload."),
    ] = None,
    device: Devices = None,
    period: Annotated[float, typer.Option(help="Seconds between checks of the queue.")] = 1.0,
    upload: Annotated[
        bool,
        typer.Option(
            "--upload",
            help="Keep the service's stored cluster in step with Slurm: its dashboard shows it, and training loops can "
            "report step times.",
        ),
    ] = False,
) -> None:
    """Assign jobs held by `job_submit.lua` to the node that the service ranks first. Runs until stopped.

    Example: `cotenant controller slurm --device big=a100-80gb`
    """
    from serving.integrations.ask import ServiceClient
    from serving.integrations.slurm import SlurmConfig, run

    config = SlurmConfig(period_s=period, devices=devices_by_type(device), upload=upload)
    with _until_stopped():
        run(ServiceClient(service, token), config)


@app.command("kubernetes")
def kubernetes(
    context: typer.Context,
    service: ServiceUrl = "http://127.0.0.1:8080",
    token: Annotated[
        str | None, typer.Option(envvar="COTENANT_TOKEN", help="Token of scope `admin`.")
    ] = None,
    device: Devices = None,
    period: Annotated[float, typer.Option(help="Seconds between polls of nodes and pods.")] = 5.0,
    kube_context: Annotated[
        str | None,
        typer.Option(
            "--context",
            help="Context of the kubeconfig (default: the current one; in a pod, its own cluster).",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Poll once, then exit.")] = False,
) -> None:
    """Report nodes and their annotated pods to the service when they change, and once a minute the pods' remaining
    iterations. Runs until stopped.

    Needs the extra `kubernetes`, and permission to list nodes and the pods of all namespaces.

    Example: `cotenant controller kubernetes --service http://127.0.0.1:8080`
    """
    from profiling.errors import UnavailableError
    from serving.integrations.api_server import ApiServer
    from serving.integrations.ask import ServiceClient
    from serving.integrations.kubernetes import KubernetesConfig, look, run

    if once:
        no_effect(context, "with --once", "period")
    config = KubernetesConfig(period_s=period, devices=devices_by_type(device))
    client = ServiceClient(service, token, timeout_s=30.0)
    with _until_stopped():
        api = ApiServer.connect(kube_context)
        if not once:
            run(client, config, api)
        elif not look(client, config, api):
            raise UnavailableError("the cluster was not uploaded", hint="see the log above")


def devices_by_type(texts: list[str] | None) -> dict[str, str]:
    """Catalogue names by GPU type, from the values of `--device`. Raises `InputError`."""
    from profiling.errors import InputError

    devices: dict[str, str] = {}
    for text in texts or ():
        kind, _, name = text.partition("=")
        if not (kind and name):
            raise InputError("--device is not a pair", expected="TYPE=CATALOGUE_NAME", got=text)
        if devices.get(kind, name) != name:
            raise InputError(
                f"--device names {kind!r} twice",
                expected="one name of each type",
                got=f"{devices[kind]} and {name}",
            )
        devices[kind] = name
    return devices


@contextmanager
def _until_stopped() -> Iterator[None]:
    """With a log of what is done; Ctrl-C ends it with status 0."""
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
