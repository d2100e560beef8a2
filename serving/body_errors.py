"""Explains what is wrong with a JSON body: where, what was expected, what was received."""

from __future__ import annotations

import re
import sys
from typing import Any

import msgspec
from msgspec import inspect

from profiling.errors import InputError
from profiling.names import one_of

_PATH = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_CHOICE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_TOO_LARGE = "Number out of range"  # 1e999, which no type can hold
_SHOWN = 80
SEE_SHAPE = "see /openapi.json for the shape"
# Of longer bodies the received value is not shown, because the rest may cost a second to read.
_READ_AGAIN_BYTES = 64 * 2**10


def shape_error(message: str, raw: bytes, kind: type) -> InputError:
    """The error for a body that msgspec cannot decode as `kind`.

    Args:
        message: the message of `msgspec.ValidationError`.
        raw: the body, to find the received value if msgspec does not name it.
    """
    text, _, path = message.rpartition(" - at `") if " - at `" in message else (message, "", "$")
    path = path.rstrip("`")
    where = "body" if path == "$" else f"body at {path}"
    steps = _PATH.findall(path.removeprefix("$"))
    choice, unknown = _CHOICE.fullmatch(text), _FIELD.fullmatch(text)
    if choice:
        names = [
            str(v) for t in _types_at(kind, steps) if isinstance(t, inspect.LiteralType) for v in t.values
        ]
        return InputError(where, expected=one_of(choice[1][:_SHOWN], names), got=repr(choice[1][:_SHOWN]))
    if unknown:
        fields = [
            f.encode_name
            for t in _types_at(kind, steps)
            if isinstance(t, inspect.StructType)
            for f in t.fields
        ]
        name = unknown[1][:_SHOWN]
        return InputError(f"{where}: unknown field", expected=one_of(name, fields), got=repr(name))
    if text == _TOO_LARGE:
        return InputError(f"{where}: number out of range", expected=_number(_types_at(kind, steps)))
    if not text.startswith("Expected "):
        return InputError(f"{where}: {text.replace('`', '')}", hint=SEE_SHAPE)
    expected, _, got = text.replace("`", "").removeprefix("Expected ").partition(", got ")
    hint = None if steps else SEE_SHAPE
    return InputError(where, expected=expected, got=got or _came(raw, steps), hint=hint)


def _came(raw: bytes, steps: list[tuple[str, str]]) -> str | None:
    if len(raw) > _READ_AGAIN_BYTES:
        return None
    try:
        got = msgspec.json.decode(raw)
        for key, index in steps:
            got = got[key] if key else got[int(index)]
    except (LookupError, TypeError, ValueError, RecursionError, msgspec.DecodeError):
        return None
    return repr(got)[:_SHOWN]


def _number(types: list[Any]) -> str:
    """What is expected of a number of one of these types."""
    for t in types:
        if isinstance(t, inspect.IntType | inspect.FloatType):
            least = f"above {t.gt:g}" if t.gt is not None else "" if t.ge is None else f"from {t.ge:g}"
            most = f"below {t.lt:g}" if t.lt is not None else "" if t.le is None else f"to {t.le:g}"
            name = "an integer" if isinstance(t, inspect.IntType) else "a number"
            if least or most:
                return " ".join(filter(None, (name, least, most)))
    return f"a number from {-sys.float_info.max:.2g} to {sys.float_info.max:.2g}"


def _types_at(kind: type, steps: list[tuple[str, str]]) -> list[Any]:
    """The type that `kind` expects at a place in the body; members of a union one by one."""
    types = _members(inspect.type_info(kind))
    for key, _ in steps:
        below: list[Any] = []
        for t in types:
            if isinstance(t, inspect.StructType):
                below += [f.type for f in t.fields if f.encode_name == key]
            elif isinstance(t, inspect.ListType):
                below.append(t.item_type)
            elif isinstance(t, inspect.DictType):
                below.append(t.value_type)
        types = [member for t in below for member in _members(t)]
    return types


def _members(t: Any) -> list[Any]:
    if isinstance(t, inspect.Metadata):
        return _members(t.type)
    return [m for u in t.types for m in _members(u)] if isinstance(t, inspect.UnionType) else [t]
