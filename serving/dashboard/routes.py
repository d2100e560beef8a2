"""Routes of the dashboard."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from profiling.errors import CotenantError, UnknownNameError
from serving.app_version import version
from serving.auth import COOKIE, SESSION_S, UnauthorizedError, session_of
from serving.conditions import etag, not_modified
from serving.dashboard import view
from serving.dashboard.health import Health
from serving.http import answer as respond
from serving.middleware import headers_for
from serving.problems import of_parameters
from serving.routing import OPEN, SCOPE, Handler, ServiceRoute
from serving.service import Service

_READ, _OPEN = {SCOPE: "read"}, {SCOPE: OPEN}
_HERE = Path(__file__).parent
# Swagger UI (Apache-2.0) comes with the package fastapi-swagger (MIT), so that the API reference works offline.
_SWAGGER = "fastapi_swagger.resources"
# A path, and never another host, which browsers also read from `//` and `/\`.
_OWN_PAGE = re.compile(r"/(?![/\\])[!-~]*")
_LONGEST_NEXT = 1000
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
    # A tenant without a job id is shown by its placement's identifier.
    environment.filters["short"] = lambda name: name[:8] if re.fullmatch("[0-9a-f]{32}", name) else name
    environment.filters["time"] = lambda s: datetime.fromtimestamp(s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    environment.filters["day"] = lambda d: datetime.fromtimestamp(d * 86400, UTC).strftime("%Y-%m-%d")
    environment.filters["percent"] = lambda ratio: "-" if ratio is None else f"{100 * ratio:.1f} %"
    environment.filters["duration"] = _duration
    environment.globals["project_version"] = version()
    return environment


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    for most, unit, size in ((120, "s", 1), (7_200, "min", 60), (172_800, "h", 3_600)):
        if seconds < most:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86_400:.3g} days"


class PageRoute(ServiceRoute):
    """A page: browsers without a token or session are sent to `/login`, and shown errors as pages."""

    only_known_keys = False  # a page's links and forms repeat keys, and links elsewhere may have more

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(request)
            except (CotenantError, RequestValidationError) as error:
                browser = "text/html" in request.headers.get("accept", "")
                if not browser or "authorization" in request.headers:
                    raise
                told = of_parameters(error) if isinstance(error, RequestValidationError) else error
                if isinstance(told, UnauthorizedError):
                    back = urlencode({"next": _asked(request)})
                    return Response(None, 303, {"Location": f"/login?{back}", "Cache-Control": "no-store"})
                request.state.error = told
                return page(request, "error.html", told.status, headers_for(told), here="error", error=told)

        return shown


def page(
    request: Request, name: str, status: int = 200, headers: dict[str, str] | None = None, **values: Any
) -> Response:
    """A rendered page, which the browser shows again only as it is by then."""
    required = request.app.state.service.tokens_required and values.get("here") != "login"
    signed_in = required and session_of(request) is not None
    html = _templates().get_template(name).render(signed_in=signed_in, **values)
    headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(html, status, headers, media_type="text/html; charset=utf-8")


def _asked(request: Request) -> str:
    """The page that a request asks for: path and query; the first page if that is too long to be carried along."""
    query = request.url.query
    asked = request.url.path + (f"?{query}" if query else "")
    return asked if len(asked) <= _LONGEST_NEXT and request.method == "GET" else "/"


def _own(page: str) -> str:
    """`page` if it is an address of this service, else that of the first page."""
    return page if len(page) <= _LONGEST_NEXT and _OWN_PAGE.fullmatch(page) else "/"


def routes(service: Service) -> APIRouter:
    router = APIRouter(include_in_schema=False, route_class=PageRoute)

    health = Health()

    @router.get("/", openapi_extra=_READ)
    async def overview(
        request: Request,
        first: Annotated[int, Query(ge=0, le=10**7)] = 0,
        node: Annotated[str, Query(max_length=200)] = "",
        device: Annotated[str, Query(max_length=200)] = "",
        tenant: Annotated[str, Query(max_length=200)] = "",
        state: Annotated[str, Query(max_length=20)] = "",
        observed_device: Annotated[str, Query(max_length=200)] = "",
        observed_job: Annotated[str, Query(max_length=200)] = "",
        placed: Annotated[str, Query(max_length=20)] = "",
    ) -> Response:
        shown_by = view.Filter(
            node.strip(), device, tenant.strip(), state, observed_device, observed_job, placed
        )
        shown = await view.overview(service, health, first, shown_by)
        return page(request, "overview.html", here="overview", **shown)

    @router.get("/jobs/{key}", openapi_extra=_READ)
    async def job(request: Request, key: str) -> Response:
        return page(request, "job.html", here="job", **await view.job(service, key))

    @router.get("/what-if", openapi_extra=_READ)
    async def what_if(
        request: Request,
        device: Annotated[list[Annotated[str, Query(max_length=200)]] | None, Query(max_length=50)] = None,
        jobs: Annotated[str, Query(max_length=10_000)] = "",
        sharing: Annotated[list[Annotated[str, Query(max_length=20)]] | None, Query(max_length=10)] = None,
    ) -> Response:
        devices, modes = dict.fromkeys(device or ["v100"]), dict.fromkeys(sharing or ["time-slice"])
        shown = await view.what_if(service, list(devices), jobs, list(modes))
        return page(request, "what_if.html", here="what-if", **shown)

    @router.get("/login", openapi_extra=_OPEN)
    async def login(request: Request, to: Annotated[str, Query(alias="next")] = "/") -> Response:
        return page(request, "login.html", here="login", problem=None, next=_own(to))

    @router.post("/login", openapi_extra=_OPEN)
    async def enter(
        request: Request,
        token: Annotated[str, Form(max_length=500)] = "",
        to: Annotated[str, Form(alias="next")] = "/",
    ) -> Response:
        client = request.client.host if request.client else ""
        failures = service.authenticator.failures
        failures.check(client)
        try:
            session = await service.check_token(service.authenticator.open_session, token)
        except UnauthorizedError as error:
            failures.spend(client)
            return page(request, "login.html", 401, here="login", problem=error.message, next=_own(to))
        answer = Response(None, 303, {"Location": _own(to)})
        # Accepted by GET requests only, so that no other site can make this browser change anything.
        secure = request.scope["scheme"] == "https"
        answer.set_cookie(
            COOKIE, session, httponly=True, samesite="strict", secure=secure, max_age=round(SESSION_S)
        )
        return answer

    @router.post("/logout", openapi_extra=_OPEN)
    async def leave(request: Request) -> Response:
        session = session_of(request)
        if session is not None:
            await service.stored(service.authenticator.close_session, session)
        answer = Response(None, 303, {"Location": "/login"})
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    @router.get("/docs", openapi_extra=_READ)
    async def reference(request: Request) -> Response:
        return page(request, "docs.html")

    @router.get("/openapi.json", openapi_extra=_READ)
    async def document(request: Request) -> Response:
        return respond(request.app.openapi())

    @router.get("/static/{name}", openapi_extra=_OPEN)
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
