"""`cotenant serve`: the REST service, and its tokens."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import Annotated, Any

import typer

from serving.cli.given_options import no_effect
from serving.cli.groups import group
from serving.cli.output import JsonFlag, console, plain_table, print_json

app = typer.Typer(
    rich_markup_mode="markdown",
    invoke_without_command=True,
    help="Run the REST service.\n\nExample: `cotenant serve --port 8080`, then "
    '`curl -s localhost:8080/v1/predict -H \'content-type: application/json\' -d \'{"device": "v100", "jobs": ["resnet18-cifar", "lstm-wikitext2"]}\'`\n\n'
    "A loopback address without a proxy needs no token; for any other, create one first with `cotenant serve token add`.",
)
token = group("Bearer tokens of the service.\n\nExample: `cotenant serve token add scheduler --scope place`")
app.add_typer(token, name="token")

Database = Annotated[
    str,
    typer.Option("--database", envvar="COTENANT_DATABASE", help="sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME."),
]  # fmt: skip
_DATABASE = "sqlite:///cotenant.db"


@app.callback()
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(envvar="COTENANT_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="COTENANT_PORT", help="Port; 0 for any free one.")] = 8080,
    workers: Annotated[int, typer.Option(envvar="COTENANT_WORKERS", help="Number of processes.")] = 1,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", envvar="COTENANT_MODEL", help="`default`, a folder, or `models:/NAME@ALIAS`."
        ),
    ] = "default",
    policy: Annotated[
        str | None,
        typer.Option(
            envvar="COTENANT_POLICY",
            help="Policy that chooses the GPU, by name or your own `module:POLICY`; by default the ranking of `place`.",
        ),
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(envvar="MLFLOW_TRACKING_URI", help="MLflow server that the model is registered with."),
    ] = None,
    database: Database = _DATABASE,
    auth: Annotated[
        str,
        typer.Option(
            envvar="COTENANT_AUTH",
            help="auto (tokens required unless on loopback without a proxy), on or off.",
        ),
    ] = "auto",
    rate: Annotated[
        float,
        typer.Option(
            envvar="COTENANT_RATE", help="Requests per second per caller and process; 0 for no limit."
        ),
    ] = 0.0,
    timeout: Annotated[
        float, typer.Option(envvar="COTENANT_TIMEOUT", help="Request timeout, seconds.")
    ] = 30.0,
    poll: Annotated[
        float, typer.Option(envvar="COTENANT_POLL", help="Seconds between checks for a new model.")
    ] = 15.0,
    in_flight: Annotated[
        int,
        typer.Option(
            envvar="COTENANT_IN_FLIGHT",
            help="Maximum concurrent requests per process; more are refused with 503.",
        ),
    ] = 512,
    drain: Annotated[
        float, typer.Option(envvar="COTENANT_DRAIN", help="Seconds to finish running requests after SIGTERM.")
    ] = 30.0,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(envvar="COTENANT_ALLOWED_HOST", help="Accepted host name; may be repeated."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            envvar="COTENANT_TRUSTED_PROXY",
            help="Address or network whose X-Forwarded headers are trusted; may be repeated.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            envvar="COTENANT_LIMIT",
            help="Set a limit as NAME=NUMBER (see docs/operations.md); may be repeated.",
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(envvar="COTENANT_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
) -> None:
    if context.invoked_subcommand is not None:
        of_service = "before `token`, whose commands have a --database of their own"
        no_effect(context, of_service, *context.params)
        return
    from profiling.devices import list_devices
    from profiling.errors import UnavailableError
    from serving.config import ServiceConfig
    from serving.model_source import LOGGED_PREFIX, REGISTRY_PREFIX, check_model

    if sys.platform != "linux":  # capture processes limit their memory by /proc
        raise UnavailableError(
            "the service needs Linux", got=sys.platform, hint="run its image: docs/operations.md, Deployment"
        )
    # Report what is missing here, not in every worker.
    check_model(model)
    if not model.startswith((REGISTRY_PREFIX, LOGGED_PREFIX)):
        no_effect(context, "without --model models:/NAME@ALIAS", "tracking_uri")
    list_devices()
    if policy is not None:
        from scheduling.policies import get_policy

        get_policy(policy)
    config = ServiceConfig(
        host=host, port=port, workers=workers, model=model, policy=policy, tracking_uri=tracking_uri, database_url=database, auth=auth,
        rate_per_s=rate, request_timeout_s=timeout, poll_s=poll, requests_in_flight=in_flight, drain_s=drain,
        log_level=log_level, allowed_hosts=tuple(allowed_host or ()), trusted_proxies=tuple(trusted_proxy or ()),
    )  # fmt: skip
    run(config.with_limits(limit or []))


def run(config: object) -> None:
    """Serve until SIGTERM or SIGINT, then finish the running requests."""
    import uvicorn
    from uvicorn.config import STARTUP_FAILURE
    from uvicorn.supervisors import Multiprocess

    from serving import address, logs
    from serving.config import ServiceConfig
    from serving.listener import BoundedProtocol
    from serving.metrics import DIRECTORY_VARIABLE
    from serving.metrics_folder import metrics_folder
    from serving.store import Store

    assert isinstance(config, ServiceConfig)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logs.configure(config.log_level)
    # Report an unusable database in one line instead of a worker's traceback.
    Store(config.database_url).close()
    address.check(config.host, config.port)
    # uvicorn drains and then raises the signal again; a requested stop is not a failure.
    signal.signal(signal.SIGTERM, _stop)
    os.environ |= config.to_environment()
    if config.port:  # the one line for people; the rest of stderr is JSON logs
        host = f"[{config.host}]" if ":" in config.host else config.host
        print(
            f"cotenant serves on http://{host}:{config.port} (API reference: /docs); Ctrl-C to stop",
            flush=True,
        )
    with metrics_folder() as folder:
        if config.workers > 1:
            os.environ.setdefault(DIRECTORY_VARIABLE, folder)
        settings = uvicorn.Config(
            "serving.app:from_environment",
            factory=True,
            host=config.host,
            port=config.port,
            workers=config.workers,
            loop="serving.event_loop:AcceptingLoop",
            http=BoundedProtocol,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(config.drain_s),
            timeout_keep_alive=max(1, int(config.idle_s)),
            timeout_worker_healthcheck=max(5, int(config.stuck_s)),
            backlog=2048,
        )
        if config.workers > 1:
            with address.reserve(config.host, config.port) as reserved:
                Multiprocess(settings, sockets=[reserved]).run()
            return
        server = uvicorn.Server(settings)
        with suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit(STARTUP_FAILURE)


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit(0)


@token.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the token's user.")],
    scope: Annotated[list[str], typer.Option("--scope", "-s", help="read, place or admin; may be repeated.")],
    database: Database = _DATABASE,
    days: Annotated[float | None, typer.Option(help="Days until the token expires (default: never).")] = None,
) -> None:
    """Create a token and print it once. Example: `cotenant serve token add scheduler --scope place`."""
    from serving.auth import create_token
    from serving.store import Store

    print(create_token(Store(database), name, scope, days))


@token.command("list")
def listing(database: Database = _DATABASE, as_json: JsonFlag = False) -> None:
    """List the names and scopes of all tokens. Example: `cotenant serve token list --json`."""
    from serving.auth import list_tokens
    from serving.store import Store, check_exists

    check_exists(database)
    tokens = list_tokens(Store(database))
    if as_json:
        print_json(tokens)
        return
    table = plain_table("name", "scopes", "valid")
    for entry in tokens:
        table.add_row(str(entry["name"]), ", ".join(entry["scopes"]), _valid(entry))  # type: ignore[arg-type]
    console().print(table)


def _valid(entry: dict[str, Any]) -> str:
    if entry["revoked_at"]:
        return "revoked"
    if entry["expires_at"] is None:
        return "yes"
    expired = entry["expires_at"] < time.time()
    return f"{'until' if not expired else 'expired'} {time.strftime('%Y-%m-%d', time.gmtime(entry['expires_at']))}"


@token.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="Name of the token's user.")], database: Database = _DATABASE
) -> None:
    """Revoke a token. Example: `cotenant serve token revoke scheduler`."""
    from serving.auth import revoke_token
    from serving.store import Store, check_exists

    check_exists(database)
    revoke_token(Store(database), name)
    typer.echo(f"revoked the token of {name}")
