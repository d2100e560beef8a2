"""Routes of the dashboard."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request, Response
from starlette.responses import RedirectResponse

from profiling.errors import CotenantError, UnknownNameError
from serving.app_version import version
from serving.auth import COOKIE
from serving.dashboard import view
from serving.http import etag, not_modified
from serving.service import Service

_HERE = Path(__file__).parent
# Swagger UI (Apache-2.0) comes with the package fastapi-swagger (MIT), so that the API reference works offline.
_SWAGGER = "fastapi_swagger.resources"
_STATIC = {
    "style.css": ("serving.dashboard", "text/css"),
    "docs.js": ("serving.dashboard", "text/javascript"),
    "swagger-ui.css": (_SWAGGER, "text/css"),
    "swagger-ui-bundle.js": (_SWAGGER, "text/javascript"),
}


@lru_cache(maxsize=1)
def _templates() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["gib"] = lambda value: f"{value / view.GIB:.1f} GiB"
    # A tenant without a name of its own has its placement's identifier.
    environment.filters["short"] = lambda name: name[:8] if re.fullmatch("[0-9a-f]{32}", name) else name
    environment.filters["time"] = lambda s: datetime.fromtimestamp(s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    environment.filters["day"] = lambda d: datetime.fromtimestamp(d * 86400, UTC).strftime("%Y-%m-%d")
    environment.globals["project_version"] = version()
    return environment


def page(name: str, status: int = 200, **values: Any) -> Response:
    """A rendered page."""
    html = _templates().get_template(name).render(**values)
    return Response(html, status, media_type="text/html; charset=utf-8")


def routes(service: Service) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def overview(request: Request, first: Annotated[int, Query(ge=0, le=10**7)] = 0) -> Response:
        return page("overview.html", here="overview", **await view.overview(service, first))

    @router.get("/what-if")
    async def what_if(
        request: Request,
        device: Annotated[str, Query(max_length=200)] = "v100",
        jobs: Annotated[str, Query(max_length=10_000)] = "",
        sharing: Annotated[str, Query(max_length=20)] = "time-slice",
    ) -> Response:
        return page("what_if.html", here="what-if", **await view.what_if(service, device, jobs, sharing))

    @router.get("/login")
    async def login(request: Request) -> Response:
        return page("login.html", here="login", problem=None)

    @router.post("/login")
    async def enter(request: Request, token: Annotated[str, Form(max_length=500)] = "") -> Response:
        try:
            await service.stored(service.authenticator.look_up, f"Bearer {token}")
        except CotenantError as error:
            return page("login.html", 401, here="login", problem=error.message)
        answer = RedirectResponse("/", 303)
        # Read by GET requests only, so that no other site can make this browser change anything.
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure, max_age=12 * 3600)
        return answer

    @router.get("/docs")
    async def reference(request: Request) -> Response:
        return page("docs.html")

    @router.get("/static/{name}")
    async def static(request: Request, name: str) -> Response:
        if name not in _STATIC:
            raise UnknownNameError("unknown file", expected=", ".join(_STATIC), got=repr(name[:80]))
        package, media = _STATIC[name]
        body = resources.files(package).joinpath(name).read_bytes()
        headers = {"ETag": etag(body), "Cache-Control": "no-cache"}
        if not_modified(request, headers["ETag"]):
            return Response(None, 304, headers)
        return Response(body, headers=headers, media_type=media)

    return router
