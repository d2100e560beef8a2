"""OpenAPI for routes that decode with msgspec: schemas of bodies and answers, examples, and problems for every error."""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Query
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from profiling.errors import CotenantError
from scheduling.core.policy import PolicyError
from serving.routing import OPEN, SCOPE, WATCH

_REF = "#/components/schemas/{name}"
_ERRORS = {
    400: "Body is not JSON",
    401: "A token is needed",
    403: "The token lacks the required scope",
    404: "Unknown name",
    408: "The body did not arrive in time",
    409: "No feasible answer, or the state has changed",
    412: "`If-Match` or `If-None-Match` does not hold",
    413: "Over the limit",
    421: "The Host is not served here",
    415: "Media type is not supported",
    422: "Input is not what was expected",
    429: "Too many requests",
    431: "The request's header section is too large",
    500: "The service failed; quote the request id",
    503: "Not available now: no model, an overloaded service, or the store is down",
    504: "No answer in time",
}
_EVERYWHERE = (400, 401, 403, 408, 413, 415, 421, 422, 429, 431, 500, 503, 504)
_TYPES: set[Any] = set()
_HEADERS = {
    "ETag": "Names this state, for `If-None-Match` and `If-Match`",
    "Location": "URL of what the request made",
    "Retry-After": "Seconds after which the same request may succeed",
    "WWW-Authenticate": "How to authenticate: `Bearer`",
}
_OF_ERRORS = {401: "WWW-Authenticate", 429: "Retry-After", 503: "Retry-After"}


def _problem() -> dict[str, Any]:
    """JSON schema of a problem."""
    return {
        "type": "object",
        "description": "RFC 9457 problem details.",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "description": "One of " + ", ".join(problem_types())},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {
                "type": "string",
                "description": "One sentence: what was expected, what was received, what to do.",
            },
            "instance": {"type": "string"},
            "expected": {"type": "string"},
            "got": {"type": "string"},
            "hint": {"type": "string"},
            "error": {"type": "string", "description": "The same as `detail`, under `/v2` only."},
        },
    }


def operation(
    *,
    scope: str,
    answer: Any = None,
    status: int = 200,
    also: dict[int, str] | None = None,
    body: Any = None,
    examples: dict[str, Any] | None = None,
    errors: tuple[int, ...] = (),
    content: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
    headers: tuple[str, ...] = (),
    media: str = "application/json",
) -> dict[str, Any]:
    """Arguments for a router's decorator.

    Args:
        scope: scope that a caller needs: `read`, `place`, `admin`; `open` for everyone, `watch` for everyone
            even under overload.
        answer: type of the response; None if it has no body.
        also: other statuses with the same response (201 besides 200).
        body: type of the JSON body; examples: bodies by name.
        errors: statuses of problems beyond those common to all routes.
        content: other media types of the body, with their schemas.
        parameters: headers that the route reads itself.
        headers: of `_HEADERS`, those of a response that is no problem.
    """
    responses: dict[int | str, Any] = {}
    for code, text in {status: "Done", **(also or {})}.items():
        entry: dict[str, Any] = {"description": text}
        if answer is not None and code not in (204, 304):
            entry["content"] = {media: {"schema": _schema(answer)}}
        if headers and code < 400:
            entry["headers"] = _described(*headers)
        responses[code] = entry
    if body is not None:
        errors = (*errors, 400, 415)
    for code in sorted({*errors, *_EVERYWHERE}):
        content_of = responses.setdefault(code, {"description": _ERRORS[code]}).setdefault("content", {})
        content_of["application/problem+json"] = {"schema": {"$ref": _REF.format(name="Problem")}}
        if code in _OF_ERRORS:
            responses[code]["headers"] = _described(_OF_ERRORS[code])
    extra: dict[str, Any] = {SCOPE: scope}
    if scope in (OPEN, WATCH):
        extra["security"] = []
    bodies: dict[str, Any] = {}
    if body is not None:
        bodies["application/json"] = {"schema": _schema(body)}
        if examples:
            bodies["application/json"]["examples"] = {k: {"value": v} for k, v in examples.items()}
    bodies |= content or {}
    if bodies:
        extra["requestBody"] = {"required": True, "content": bodies}
    if parameters:
        extra["parameters"] = parameters
    return {"response_model": None, "status_code": status, "responses": responses, "openapi_extra": extra}


def _described(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def header(name: str, description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    """A header parameter for `operation(parameters=...)`."""
    return {
        "name": name, "in": "header", "required": False, "description": description,
        "schema": schema or {"type": "string"},
    }  # fmt: skip


# Query parameters of lists: the last entry of the page before, a string as in `Page`, and the length of a page.
AFTER = "`next` of the page before"
After = Annotated[str, Query(pattern="^[0-9]{1,15}$", description=AFTER)]
Limit = Annotated[int, Query(ge=1, le=200)]
# Arguments of `operation` for what a caller may have already.
CONDITIONAL: dict[str, Any] = {
    "also": {304: "Not changed"},
    "headers": ("ETag",),
    "parameters": [
        header("If-None-Match", "ETags that the caller has; 304 if one of them is current, or `*`")
    ],
}
DEADLINE = header(
    "X-Timeout-S",
    "Longest time that the caller will wait, in seconds",
    {"type": "number", "exclusiveMinimum": 0},
)
IDEMPOTENCY_KEY = header(
    "Idempotency-Key",
    "Requests repeated with this key are carried out once",
    {"type": "string", "minLength": 1, "maxLength": 200},
)


def any_of(*kinds: Any) -> dict[str, Any]:
    """The schema of a response with one of several types."""
    return {"anyOf": [_schema(kind) for kind in kinds]}


def _schema(kind: Any) -> dict[str, Any]:
    if isinstance(kind, dict):
        return kind
    _TYPES.add(kind)
    return deepcopy(_schema_of(kind))


@cache
def _schema_of(kind: Any) -> dict[str, Any]:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def operation_id(route: APIRoute) -> str:
    """`post_predict_batch` for `POST /v1/predict/batch`: the function name in generated clients."""
    words = re.findall(r"[A-Za-z0-9_]+", route.path.removeprefix("/v1"))
    return "_".join([min(route.methods or {"get"}).lower(), *words]).replace("-", "_")


def problem_types() -> list[str]:
    """The `type` of every problem that the service may answer with."""
    kinds, found = [*CotenantError.__subclasses__()], {PolicyError.urn()}  # a policy of one's own
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith(("profiling.", "serving.")):
            found.add(kind.urn())
    return sorted(found)


def install(app: FastAPI) -> None:
    """Build `/openapi.json` from the routes and their msgspec types."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, summary=app.summary, description=app.description,
                routes=app.routes, tags=app.openapi_tags,
            )  # fmt: skip
            _, components = msgspec.json.schema_components(_TYPES, ref_template=_REF)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(components)
            schemas["Problem"] = _problem()
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            document["components"]["headers"] = {
                name: {
                    "description": told,
                    "schema": {"type": "integer" if name == "Retry-After" else "string"},
                }
                for name, told in _HEADERS.items()
            }
            document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"bearer": []}, {}]
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
