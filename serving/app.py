"""`create_app(config)`: the whole service as one ASGI application."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

# Must precede the import of numpy: under load, two OpenMP threads take a hundred times as long as one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import structlog
from fastapi import FastAPI

from profiling.errors import CotenantError
from profiling.zoo import zoo_names
from serving import openapi, problems
from serving.api import (
    audit,
    cluster,
    devices,
    health,
    models,
    observations,
    place,
    placements,
    predict,
    probes,
    slice_plans,
    throughput,
    workloads,
)
from serving.app_version import version
from serving.config import ServiceConfig
from serving.dashboard import routes as dashboard
from serving.extender import routes as extender
from serving.handlers.jobs import forget_deleted
from serving.handlers.upkeep import upkeep
from serving.middleware import RequestMiddleware
from serving.model_source import ModelSource
from serving.oip import routes as oip
from serving.service import Service

_GROUPS: tuple[Any, ...] = (
    health,
    predict,
    probes,
    slice_plans,
    throughput,
    place,
    placements,
    observations,
    cluster,
    workloads,
    devices,
    models,
    audit,
    oip,
    dashboard,
    extender,
)
_DESCRIPTION = """\
Predicts how deep-learning jobs share a GPU, and places jobs accordingly.

A job is a SPEC, `NAME[:key=value,...]`, or an object with the same keys. Each quantity is a value with its 90
% interval, in the unit given by the field's name. Errors are RFC 9457 problem details that state what was
expected, what was received, and what to do. Every answer carries `X-Request-Id`, which the log has, too.
"""


def create_app(config: ServiceConfig = ServiceConfig(), source: ModelSource | None = None) -> FastAPI:
    """The application. `app.state.service` is its `Service`.

    Args:
        config: settings.
        source: where the model comes from; overrides `config.model`.

    Raises:
        InputError: the database address cannot be used. UnavailableError: the database does not answer.
    """
    service = Service(config, source)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(zoo_names)  # imported now, because no request should wait for its imports
        await service.start(upkeep, forget_deleted)
        try:
            yield
        finally:
            await service.stop()

    app = FastAPI(
        title="cotenant",
        summary="Co-location prediction and placement of deep-learning jobs",
        description=_DESCRIPTION,
        version=version(),
        lifespan=lifespan,
        openapi_url=None,  # see serving.dashboard.routes, where it has a scope like every other route
        docs_url=None,  # served by the dashboard, without third-party scripts
        redoc_url=None,
        redirect_slashes=False,  # Starlette would redirect to the name in the Host header
        generate_unique_id_function=openapi.operation_id,
    )
    app.state.service = service
    routers = [group.routes(service) for group in _GROUPS]
    for router in routers:
        app.include_router(router)
    problems.install(app, [route for router in routers for route in router.routes])
    openapi.install(app)
    app.add_middleware(RequestMiddleware, service=service)
    return app


def from_environment() -> FastAPI:
    """The application of a worker process; see `ServiceConfig.from_environment`."""
    from profiling.ending import end_with_parent
    from serving import logs, process

    config = ServiceConfig.from_environment()
    logs.configure(config.log_level)
    process.prepare()
    end_with_parent()
    try:
        app = create_app(config)
    except CotenantError as error:
        if multiprocessing.parent_process() is None:
            raise  # the command prints it
        structlog.get_logger("cotenant.service").error("worker cannot start", error=error.message)
        sys.exit(1)  # the parent starts another
    app.state.service.warm_captures = True
    return app
