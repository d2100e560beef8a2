"""Conditional requests (RFC 9110): `ETag`, `If-Match`, `If-None-Match`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from profiling.errors import CotenantError, InputError
from serving.http import answer

ANY = "*"
_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
_BARE = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # a version without its quotes


class PreconditionError(CotenantError):
    """`If-Match` or `If-None-Match` does not hold."""

    exit_code = 1
    status = 412
    slug = "precondition-failed"
    title = "State has changed"


def etag(*parts: Any) -> str:
    """A strong ETag from the parts that identify this state."""
    return '"' + hashlib.sha256(repr(parts).encode()).hexdigest()[:24] + '"'


def not_modified(request: Request, tag: str) -> bool:
    """Whether the caller already has this version (`If-None-Match`)."""
    try:
        asked = _listed(request, "If-None-Match")
    except InputError:
        return False
    return asked is not None and (ANY in asked or tag in map(_opaque, asked))


def tagged(request: Request, value: Any, tag: str) -> Response:
    """`value` with its ETag, or 304 if the caller already has it."""
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    return Response(None, 304, headers) if not_modified(request, tag) else answer(value, headers=headers)


@dataclass(frozen=True, slots=True)
class Condition:
    """What a change requires of the stored state: the tags of `If-Match` and `If-None-Match`; None without."""

    match: tuple[str, ...] | None = None
    none_match: tuple[str, ...] | None = None

    @classmethod
    def of(cls, request: Request) -> Condition:
        """Read the headers. Raises `InputError` if one is not a list of tags."""
        return cls(_listed(request, "If-Match"), _listed(request, "If-None-Match"))

    def check(self, tags: tuple[str, ...], exists: bool = True) -> None:
        """Raise `PreconditionError` unless the state meets this condition.

        Args:
            tags: the tags that name the state, the most exact one last.
            exists: whether the resource that changes exists.
        """
        if self.match is not None and not (exists if ANY in self.match else set(tags) & set(self.match)):
            raise PreconditionError(
                "the state has changed", expected="If-Match: " + ", ".join(self.match)[:200],
                got=tags[-1] if exists or ANY not in self.match else "nothing stored",
                hint="read it and try again",
            )  # fmt: skip
        if self.none_match is not None and exists:
            found = (
                ANY
                if ANY in self.none_match
                else next(iter(set(tags) & {*map(_opaque, self.none_match)}), None)
            )
            if found is not None:
                raise PreconditionError(
                    "the state exists already", expected=f"If-None-Match: {found}", got=tags[-1]
                )


def _opaque(tag: str) -> str:
    """A tag without its weakness, as `If-None-Match` compares it."""
    return tag.removeprefix("W/")


def _listed(request: Request, name: str) -> tuple[str, ...] | None:
    """The tags of a header, or `*`; None without the header. Raises `InputError` for anything else."""
    lines = request.headers.getlist(name)
    if not lines:
        return None
    text = ", ".join(lines).strip()
    if text == ANY:
        return (ANY,)
    if _BARE.fullmatch(text):
        return (f'"{text}"',)
    tags = tuple(_TAG.findall(text))
    if not tags or _TAG.sub("", text).strip(", \t"):
        raise InputError(
            f"{name} is not a list of tags", expected='tags such as "7", or *', got=repr(text[:80])
        )
    return tags
