"""Checks that a job's model exists, without capturing anything or importing torch."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from profiling.capture import cache
from profiling.collections import collection_of, get_network
from profiling.errors import CotenantError, InputError, UnknownNameError
from profiling.workload import REGISTERED, Workload
from profiling.zoo import resolve, zoo_names

_HASH = re.compile(r"(?:graph:)?([0-9a-f]{8,64})")
_CODE = re.compile(r"[\w.]+:[\w.]+")
_OF_FILES = ("onnx", "pipedream")
_FILES = {
    ".json": "a graph written by `cotenant capture -o`",
    ".onnx": "an ONNX file",
    ".graph.txt": "a PipeDream graph",
}


def check_model(workload: Workload) -> None:
    """Raise if a job's model is not in the zoo or a collection, nor registered as `graph:<hash>`.

    Raises:
        UnknownNameError: no such model.
        InputError: an option that a zoo model cannot have.
    """
    if workload.model.startswith(REGISTERED):
        cache.check_registered(workload.model)
    elif collection_of(workload.model):
        get_network(workload.model)
    else:
        resolve(workload)


def named_workload(spec: str) -> Workload:
    """The job of a SPEC from the command line, after checking that its model exists.

    A `module:factory` is not checked, because its module would have to be imported.

    Raises:
        InputError: malformed SPEC, or no such file.
        UnknownNameError: no such model, or no captured graph has that hash.
    """
    workload = Workload.parse(spec)
    name = workload.model
    expected = next((what for ending, what in _FILES.items() if name.endswith(ending)), None)
    if expected is not None:
        if not Path(name).is_file():
            raise InputError(f"no file at {name}", expected=expected, hint="check the path")
    elif registered_name(name) is None and ":" not in name:
        check_model(workload)
    return workload


def is_graph_only(name: str) -> bool:
    """Whether a model's name is that of a file, a captured graph or a stored network: a graph without code to run."""
    stored = name.startswith(REGISTERED) or _HASH.fullmatch(name) or collection_of(name)
    return bool(stored) or name.endswith(tuple(_FILES))


def registered_name(name: str) -> str | None:
    """`graph:<hash>` in full if `name` is the hash of a captured graph (eight digits or more); else None.

    Raises:
        UnknownNameError: no captured graph has that hash, or several have.
    """
    match = _HASH.fullmatch(name)
    if match is None:
        return None
    hashes = cache.registered_hashes(match[1])
    if len(hashes) != 1:
        raise UnknownNameError(
            "several captured graphs start with this hash" if hashes else "no captured graph has this hash",
            expected="the hash printed by `cotenant capture`",
            got=match[1],
            hint="give more digits" if hashes else "capture the model on this machine first",
        )
    return REGISTERED + hashes[0]


def captured_from(model: str) -> str | None:
    """The model of which `graph:<hash>` is a capture: `module:factory`, or a name of the zoo or of a collection.

    None if its graph is not on this machine, or has another title, which several models may share.
    """
    with suppress(CotenantError):
        graph = cache.registered(model)
        if graph.source in _OF_FILES:  # named like their files
            return None
        name = graph.name
        is_code = _CODE.fullmatch(name) and not name.startswith(REGISTERED)
        if is_code or collection_of(name) or name in zoo_names():
            return name
    return None
