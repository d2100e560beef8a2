"""Tensors of the Open Inference Protocol v2: JSON data, and the binary extension used by Triton's client.

Binary: `Inference-Header-Content-Length` gives the length of the JSON header, and the tensors' bytes follow
it in order. An element of BYTES is its length (4 bytes, little endian) and its bytes.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np

from profiling.errors import InputError
from serving.http import MalformedError, decode

LENGTH_HEADER = "inference-header-content-length"
_LENGTH = re.compile("[0-9]{1,15}")
_ELEMENTS = 10_000_000


@dataclass(frozen=True, slots=True)
class Strings:
    """A BYTES tensor: `values` in row-major order."""

    shape: tuple[int, ...]
    values: list[str]


def read_request(raw: bytes, header_length: str | None) -> tuple[dict[str, Any], bytes]:
    """The JSON object of an infer request, and the bytes after it.

    Raises:
        MalformedError: invalid length or invalid JSON. InputError: not an object.
    """
    length = len(raw)
    if header_length is not None:
        if not _LENGTH.fullmatch(header_length) or int(header_length) > len(raw):
            raise MalformedError(
                "invalid Inference-Header-Content-Length",
                expected=f"0 to {len(raw)}",
                got=header_length[:40],
            )
        length = int(header_length)
    body = decode(raw[:length], dict)
    return body, raw[length:]


def strings(body: dict[str, Any], binary: bytes) -> dict[str, Strings]:
    """The request's inputs by name; all of type BYTES.

    Raises:
        InputError: an input lacks a field, has another type, or its data do not fill its shape.
    """
    inputs = body.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(tensor, dict) for tensor in inputs):
        raise InputError("request has no inputs", expected="a list of tensors", got=type(inputs).__name__)
    inputs_by_name: dict[str, Strings] = {}
    offset = 0
    for tensor in inputs:
        name, shape = tensor.get("name"), tensor.get("shape")
        if not isinstance(name, str) or name in inputs_by_name:
            raise InputError(
                "an input's name is missing or not unique", expected="each name once", got=repr(name)[:80]
            )
        if tensor.get("datatype") != "BYTES":
            raise InputError(
                f"input {name!r} has the wrong datatype",
                expected="BYTES",
                got=repr(tensor.get("datatype"))[:80],
            )
        if (
            not isinstance(shape, list)
            or not 1 <= len(shape) <= 2
            or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= _ELEMENTS for n in shape)
            or prod(shape) > _ELEMENTS
        ):
            raise InputError(
                f"input {name!r} has a bad shape", expected="[N] or [N, M]", got=repr(shape)[:80]
            )
        parameters = tensor.get("parameters")
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        if size is None:
            values = _flat(tensor.get("data"), name)
        else:
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary) - offset:
                raise InputError(
                    f"input {name!r}: binary_data_size is wrong",
                    expected=f"0 to {len(binary) - offset}, the bytes left in the body",
                    got=repr(size)[:80],
                )
            values = _unpack(binary[offset : offset + size], name)
            offset += size
        if len(values) != prod(shape):
            raise InputError(
                f"input {name!r} does not fill its shape", expected=f"{prod(shape)} elements", got=len(values)
            )
        inputs_by_name[name] = Strings(tuple(shape), values)
    return inputs_by_name


def write_response(
    body: dict[str, Any], outputs: dict[str, np.ndarray[Any, Any]], binary: set[str]
) -> tuple[bytes, bytes]:
    """The JSON of the response `body` with `outputs`, and the bytes of those in `binary`.

    Encoded one by one, because no other thread runs while something is encoded.
    """
    described, tail = [], b""
    for name, array in outputs.items():
        described_tensor: dict[str, Any] = {
            "name": name,
            "shape": list(array.shape),
            "datatype": datatype(array),
        }
        if name in binary:
            data = array.tobytes()
            described_tensor["parameters"] = {"binary_data_size": len(data)}
            tail += data
        else:
            described_tensor["data"] = array.ravel().tolist()
        described.append(msgspec.Raw(msgspec.json.encode(described_tensor)))
    return msgspec.json.encode(body | {"outputs": described}), tail


def wanted(body: dict[str, Any], known: tuple[str, ...]) -> tuple[list[str], set[str]]:
    """Names of the requested outputs, and of those requested in binary.

    Raises:
        InputError: unknown output.
    """
    parameters = body.get("parameters")
    every = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    outputs = body.get("outputs")
    if outputs is None or outputs == []:
        return list(known), set(known) if every else set()
    if not isinstance(outputs, list) or not all(isinstance(tensor, dict) for tensor in outputs):
        raise InputError("outputs is not a list of tensors", expected="objects with a name")
    names, binary = [], set()
    for tensor in outputs:
        name = tensor.get("name")
        if name not in known:
            raise InputError("unknown output", expected="one of " + ", ".join(known), got=repr(name)[:80])
        own = tensor.get("parameters")
        asked = own.get("binary_data") if isinstance(own, dict) else None
        names.append(name)
        if asked is True or (asked is None and every):
            binary.add(name)
    return names, binary


def datatype(array: np.ndarray[Any, Any]) -> str:
    """The protocol's name for an array's type."""
    return "BOOL" if array.dtype == np.bool_ else "FP64"


def _flat(data: Any, name: str) -> list[str]:
    if not isinstance(data, list):
        raise InputError(f"input {name!r} has no data", expected="a list of strings", got=type(data).__name__)
    values: list[str] = []
    for item in data:
        for text in item if isinstance(item, list) else (item,):
            if not isinstance(text, str):
                raise InputError(
                    f"input {name!r} has an element of another type", expected="strings", got=repr(text)[:80]
                )
            values.append(text)
    return values


def _unpack(data: bytes, name: str) -> list[str]:
    values, offset = [], 0
    while offset < len(data):
        end = offset + 4
        length = struct.unpack_from("<I", data, offset)[0] if end <= len(data) else len(data)
        if end + length > len(data):
            raise InputError(f"input {name!r} is truncated", expected="length and bytes of each element")
        try:
            values.append(data[end : end + length].decode())
        except UnicodeDecodeError:
            raise InputError(f"input {name!r} is not text", expected="UTF-8") from None
        offset = end + length
    return values
