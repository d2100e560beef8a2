"""Graphs of libraries' networks, recorded once and stored as functions of the batch size: `timm/resnet50`.

Reading them requires neither torch nor the library. `python -m profiling.collections.build` rebuilds them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from profiling.capture.derive import with_accumulation, with_optimizer
from profiling.capture.fp8 import FP8, UNDER, in_fp8
from profiling.capture.options import options_of
from profiling.collections.names import COLLECTIONS, collection_of
from profiling.collections.precision import RATIOS, RECORDED, convert, peak_ratios
from profiling.collections.store import Name, store_of
from profiling.errors import InputError, UnknownNameError
from profiling.graph import ComputationGraph
from profiling.names import near_names
from profiling.workload import Workload

__all__ = [
    "COLLECTIONS",
    "check_stored",
    "collected_graph",
    "collected_names",
    "collection_of",
    "default_job",
    "get_network",
    "is_collected",
    "sizes_of",
]

_OPTIMIZER = "sgd"


def collected_names(collection: str) -> list[str]:
    """Names of a collection's networks, as used in jobs."""
    return [f"{collection}/{name}" for name in store_of(collection).names]


def is_collected(model: str) -> bool:
    """Whether a model name belongs to a stored network."""
    collection = collection_of(model)
    return bool(collection) and model.partition("/")[2] in store_of(collection).names


def sizes_of(model: str) -> tuple[int, ...]:
    """Stored image sizes (or sequence lengths) of a network, the default first."""
    entry = get_network(model)
    stored = store_of(collection_of(model)).sizes[entry.alias_of or entry.name]
    return (entry.default_size, *(size for size in stored if size != entry.default_size))


def default_job(model: str) -> Workload:
    """The job of a network under its own name (not an alias), with every default written out.

    Raises:
        UnknownNameError: no such network.
    """
    entry, collection = get_network(model), collection_of(model)
    kind = COLLECTIONS[collection]
    size: dict[str, Any] = {kind.size_option: entry.default_size} if kind.size_option else {}
    name = f"{collection}/{entry.alias_of or entry.name}"
    return Workload(name, kind.batch_size, optimizer=_OPTIMIZER, **size)


def collected_graph(workload: Workload) -> ComputationGraph:
    """The graph of a training step of a stored network.

    Any batch size, optimiser and number of accumulated passes is supported; FP32 and AMP are recorded, other
    precisions derived by rule. Frozen layers are a mask, as everywhere. Graphs are cached.

    Raises:
        UnknownNameError: no such name in the collection.
        InputError: a size that is not stored, or an option that needs the network itself.
    """
    size = check_stored(workload)
    return _graph(
        workload.model,
        size,
        workload.batch_size or COLLECTIONS[collection_of(workload.model)].batch_size,
        workload.precision,
        workload.optimizer or _OPTIMIZER,
        workload.gradient_accumulation,
    )


def check_stored(workload: Workload) -> int:
    """The size of the stored graph of a job, after checking that there is one with its options.

    Raises:
        UnknownNameError: no such name in the collection.
        InputError: a size that is not stored, or an option that needs the network itself.
    """
    collection, entry = collection_of(workload.model), get_network(workload.model)
    size_option = COLLECTIONS[collection].size_option
    for option in ("image_size", "sequence_length"):
        if option != size_option and getattr(workload, option) is not None:
            raise InputError(f"{workload.model} has no {option}", got=getattr(workload, option))
    if workload.activation_checkpointing:
        raise InputError(
            f"the stored graph of {workload.model} has no activation checkpointing",
            hint="capture the torch module as module:factory, or drop the option",
        )
    size = getattr(workload, size_option) if size_option else None
    size = entry.default_size if size is None else size
    stored = sizes_of(workload.model)
    if size not in stored:
        raise InputError(
            f"{workload.model} is not stored for this {size_option}",
            expected="one of " + ", ".join(map(str, stored)),
            got=size,
        )
    own = (entry.alias_of or entry.name, size, RECORDED[workload.precision])
    if own not in store_of(collection).rows:
        sizes = [str(s) for s in stored if (own[0], s, own[2]) in store_of(collection).rows]
        other = " or ".join(
            sorted({kept for name, s, kept in store_of(collection).rows if (name, s) == own[:2]})
        )
        of_size = f" with {size_option} {size}" if size_option else ""
        raise InputError(
            f"{workload.model}{of_size} is not stored in {own[2]}",
            expected=f"precision {other}" + (f", or {size_option} {' or '.join(sizes)}" if sizes else ""),
            got=workload.precision,
        )
    return size


@lru_cache(maxsize=256)
def _graph(
    model: str, size: int, batch_size: int, precision: str, optimizer: str, accumulation: int
) -> ComputationGraph:
    if precision == FP8:
        return in_fp8(_graph(model, size, batch_size, UNDER, optimizer, accumulation))
    collection, entry = collection_of(model), get_network(model)
    stored = entry.alias_of or entry.name
    line = store_of(collection).line(stored, size, RECORDED[precision])
    values = line.values(batch_size)
    changed, traits = convert(values, line.traits, precision)
    graph = line.at(batch_size, changed, traits)
    option = COLLECTIONS[collection].size_option
    if precision in RATIOS:
        peaks, ratio = peak_ratios(values, changed), RATIOS[precision]
        graph = replace(
            graph,
            activation_bytes=graph.activation_bytes * peaks["activation_bytes"],
            forward_activation_bytes=graph.forward_activation_bytes * peaks["forward_activation_bytes"],
            # Tokens are integers.
            host_input_bytes=graph.host_input_bytes * (1 if option == "sequence_length" else ratio),
            parameter_bytes=graph.parameter_bytes * ratio,
            gradient_bytes=graph.gradient_bytes * ratio,
            optimizer_bytes=graph.optimizer_bytes * ratio,
        )
    plain = Workload(
        model,
        precision=precision,
        optimizer="sgd",
        image_size=size if option == "image_size" else None,
        sequence_length=size if option == "sequence_length" else None,
    )
    graph = replace(graph, name=model, options=options_of(plain))
    return with_accumulation(with_optimizer(graph, optimizer), accumulation)


def get_network(model: str) -> Name:
    """The stored network of a name `COLLECTION/NAME`.

    Raises:
        UnknownNameError: no such collection or network; the message suggests similar names.
    """
    collection = collection_of(model)
    if not collection:
        raise UnknownNameError(
            f"{model!r} is in no collection", expected="COLLECTION/NAME with " + ", ".join(COLLECTIONS)
        )
    names, wanted = store_of(collection).names, model.partition("/")[2]
    entry = names.get(wanted)
    if entry is None:
        near = near_names(wanted, names)
        raise UnknownNameError(
            f"{collection} has no network {wanted!r}",
            expected="a name such as " + ", ".join(f"{collection}/{name}" for name in near) if near else None,
            hint=f"`cotenant zoo list --collection {collection}` shows all",
        )
    return entry
