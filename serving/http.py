"""Reading bodies and writing responses, shared by all routes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from profiling.errors import CotenantError, InputError, LimitError
from profiling.files import RepeatedKeyError, each_once
from serving import collector
from serving.body_errors import SEE_SHAPE, shape_error

_LARGE_BYTES = 2**18
_SAFE = "/:@!$&'()*+,;=~"  # in a path (RFC 3986), besides letters, digits, `-`, `.` and `_`

T = TypeVar("T")
OffLoop = Callable[..., Awaitable[Any]]


class MalformedError(CotenantError):
    """The body is not JSON at all, or the request is not well-formed."""

    status = 400
    slug = "malformed"
    title = "Request cannot be read"


class DeadlineError(CotenantError):
    """The request exceeded its time limit."""

    exit_code = 1
    status = 504
    slug = "deadline-exceeded"
    title = "Took too long"


class BodyTimeoutError(CotenantError):
    """The request's body did not arrive in time."""

    exit_code = 1
    status = 408
    slug = "body-timeout"
    title = "Body took too long"


class MisdirectedError(CotenantError):
    """The request's Host is not one of ours."""

    status = 421
    slug = "misdirected"
    title = "Unknown host"


class MediaTypeError(CotenantError):
    """The route does not support the body's media type."""

    status = 415
    slug = "media-type"
    title = "Media type is not supported"


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`value` as JSON; NaN and infinity, which JSON lacks, become null."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def problem(
    error: CotenantError, instance: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """RFC 9457 problem details; `instance` is the path of the request, decoded."""
    body = error.problem()
    if instance is not None:
        body["instance"] = quote(instance, safe=_SAFE)  # a URI reference
        if instance.startswith("/v2"):
            body["error"] = body["detail"]  # expected by clients of the Open Inference Protocol
    return Response(msgspec.json.encode(body), error.status, headers, media_type="application/problem+json")


async def read_body(request: Request, kind: type[T], off_loop: OffLoop | None = None) -> T:
    """The request's JSON body as `kind`.

    Args:
        off_loop: reads large bodies off the event loop.

    Raises:
        MalformedError: not JSON. MediaTypeError: declared as something else. InputError: JSON that does not
            match `kind`. LimitError: nested too deeply.
    """
    raw = await read_json(request)
    return decode(raw, kind) if off_loop is None else await off_loop(len(raw), decode, raw, kind)


async def read_json(request: Request) -> bytes:
    """The bytes of a body declared as JSON. Raises `MediaTypeError`."""
    declared = request.headers.get("content-type", "")
    if declared != "application/json" and not is_json(declared):
        raise wrong_media_type("application/json", declared)
    return await request.body()


def wrong_media_type(expected: str, content_type: str) -> MediaTypeError:
    """The error for a body of another type, or without one."""
    return MediaTypeError(
        "the body has the wrong Content-Type", expected=expected, got=media_type(content_type) or "none"
    )


def media_type(content_type: str) -> str:
    """A `Content-Type` without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Whether a body of this `Content-Type` is JSON: `application/json`, or a type with the suffix `+json`."""
    media = media_type(content_type)
    return media == "application/json" or media.endswith("+json")


def decode(raw: bytes, kind: type[T]) -> T:
    """Decode JSON into `kind`.

    Raises:
        MalformedError: not JSON, or a key is repeated in a body of at most 256 KiB. InputError: JSON that does not
            match `kind`. LimitError: nested too deeply.
    """
    try:
        with collector.paused(len(raw) > _LARGE_BYTES):
            if len(raw) <= _LARGE_BYTES:
                _check_keys(raw)
            return msgspec.json.decode(raw, type=kind)
    except RepeatedKeyError as error:
        raise MalformedError(f"body: {error}", expected="each key once in an object") from None
    except msgspec.ValidationError as error:
        raise shape_error(str(error), raw, kind) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not raw.strip():
            raise MalformedError("the body is empty", expected="a JSON object", hint=SEE_SHAPE) from None
        raise MalformedError("body is not JSON", expected="one JSON value", got=str(error)) from None
    except RecursionError:
        raise LimitError("body is nested too deeply", expected="a few levels") from None


def _only_check(members: list[tuple[str, Any]]) -> None:
    each_once(members)  # and keep nothing


_KEYS = json.JSONDecoder(object_pairs_hook=_only_check, parse_int=str)


def _check_keys(raw: bytes) -> None:
    """Raise `RepeatedKeyError` if an object has a key twice, of which msgspec would keep the last.

    This second parse takes 5 us for a set. A large body is written by a program, and could take twenty times its size.
    """
    try:
        _KEYS.decode(raw.decode())
    except RepeatedKeyError:
        raise
    except (ValueError, RecursionError):
        pass  # msgspec says what is wrong


@dataclass(frozen=True, slots=True)
class Once:
    """A caller's key for one URL, and the request that it was used for."""

    key: str
    fingerprint: str

    @classmethod
    def of(cls, caller: str, path: str, key: str | None, body: bytes) -> Once | None:
        """Read the header; None if absent. Raises `InputError` if it is empty or too long."""
        if key is None:
            return None
        if not 1 <= len(key) <= 200:
            raise InputError(
                "invalid Idempotency-Key", expected="1 to 200 characters", got=f"{len(key)} characters"
            )
        scoped = hashlib.sha256(repr((caller, path, key)).encode()).hexdigest()
        return cls(scoped, hashlib.sha256(body).hexdigest())


async def once_of(request: Request) -> Once | None:
    """The request's `Idempotency-Key`, tied to its caller, address and body."""
    caller = request.scope["state"]["caller"].name
    return Once.of(caller, request.url.path, request.headers.get("idempotency-key"), await request.body())
