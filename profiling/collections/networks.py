"""`network_of`: one key for all names of a network, whichever collection, library release or zoo it comes from.

Two names have the same network if their graphs have the same weights: equal numbers of parameters, and the same
products and norms by their sizes. What libraries implement differently (dropout, pooling, reshapes, a 1 x 1 convolution
as a linear layer) is not compared, nor are the sizes of inputs.

    python -m profiling.collections.networks    # captures the zoo, and writes which of its networks are stored
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from profiling.collections import collection_of, is_collected
from profiling.collections.affine import FIXED_SCALARS, NUMBERS, AffineGraph
from profiling.collections.names import COLLECTIONS
from profiling.collections.store import store_of
from profiling.errors import UnknownNameError
from profiling.files import read_json, write_json
from profiling.graph import ComputationGraph
from profiling.operators import CONTRACTIONS
from profiling.zoo import get_model, zoo_names

ZOO_NETWORKS = Path(__file__).with_name("data") / "zoo_networks.json"
_NORMS = frozenset({"batch_norm", "layer_norm", "group_norm"})
_SIZES = ("gemm_n", "gemm_k", "kernel_height", "kernel_width", "groups")
_COLUMNS = [NUMBERS.index(name) for name in (*_SIZES, "parameter_bytes")]
# Their names are hashes of cells: other names are other networks, even with the same operators.
_HASHED = ("nasbench",)

# Kind, whether it reads weights, executions, `_SIZES` and bytes of parameters.
_Layer = tuple[str, bool, int, tuple[float, ...]]


@lru_cache(maxsize=50_000)
def network_of(name: str) -> str:
    """A key that is equal for names of the same network.

    That of your own models, and of networks that no other name has, is the name itself; a tag after a dot states how
    weights were trained and is no part of it. No graph is captured.

    Args:
        name: a model of the zoo (or an alias), `COLLECTION/NAME`, or any other name of an architecture.
    """
    collection = collection_of(name)
    if collection in _HASHED:
        return name
    if collection:
        untagged = f"{collection}/{name.partition('/')[2].partition('.')[0]}"
        stored = next((n for n in (name, untagged) if is_collected(n)), None)
        return _stored_key(stored) if stored else name
    try:
        own = get_model(name).name
    except UnknownNameError:
        return name
    twin = _zoo_networks().get(own, own)
    return _stored_key(twin) if collection_of(twin) else twin


def one_name(names: Iterable[str]) -> dict[str, str]:
    """Each name -> the first, in alphabetical order, of those among `names` with the same network."""
    first: dict[str, str] = {}
    return {name: first.setdefault(network_of(name), name) for name in sorted(set(names))}


def networks_of(names: Iterable[str]) -> frozenset[str]:
    """`network_of` several names."""
    return frozenset(map(network_of, names))


def stored_network(line: AffineGraph) -> str:
    """The key of a stored graph."""
    rows: Iterable[tuple[float, ...]] = map(tuple, line.numbers[0][:, _COLUMNS].tolist())
    return _key(
        line.fixed[FIXED_SCALARS.index("parameter_count")],
        (
            (trait[0], bool(trait[3]), repeat, row)
            for trait, repeat, row in zip(line.traits, line.repeat.tolist(), rows, strict=True)
        ),
    )


def captured_network(graph: ComputationGraph) -> str:
    """The key of a captured graph, by the same rule."""
    return _key(
        graph.parameter_count,
        (
            (
                op.kind,
                bool(op.weight_dtype),
                op.repeat,
                (*(float(getattr(op.sizes, name)) for name in _SIZES), float(op.parameter_bytes)),
            )
            for op in graph.operators
        ),
    )


def _key(parameters: float, layers: Iterable[_Layer]) -> str:
    counts: Counter[str] = Counter()
    for kind, weighted, repeat, (n, k, height, width, groups, size) in layers:
        if kind in CONTRACTIONS and weighted:
            window = tuple(max(value, 1.0) for value in (height, width, groups))
            if n == 3 * k:
                # Query, key and value in one: nn.MultiheadAttention adds their bias in an operator of its own.
                size = 4.0 * n * k
            # A 1 x 1 convolution is a linear layer of every position.
            what = "linear" if window[0] * window[1] == 1 else kind
            counts[repr((what, n, k, *window, size))] += repeat
        elif kind in _NORMS:
            counts[repr((kind, size))] += repeat
    body = repr((float(parameters), sorted(counts.items())))
    return "network:" + hashlib.sha256(body.encode()).hexdigest()[:16]


@lru_cache(maxsize=10_000)
def _stored_key(name: str) -> str:
    """The key of `COLLECTION/NAME` at its default size; weights depend neither on precision nor on batch size."""
    store = store_of(collection_of(name))
    entry = store.names[name.partition("/")[2]]
    own = entry.alias_of or entry.name
    precision = next(p for p in ("amp", "fp32") if (own, entry.default_size, p) in store.rows)
    return stored_network(store.line(own, entry.default_size, precision))


@cache
def _zoo_networks() -> dict[str, str]:
    return dict(read_json(ZOO_NETWORKS)["names"])


def find_zoo_networks() -> dict[str, str]:
    """Zoo name -> the first name of the same network in the collections, or else the first in the zoo, where there is
    one. Captures the whole zoo."""
    from profiling.capture import graph_for
    from profiling.workload import Workload

    first: dict[str, str] = {}
    for collection in COLLECTIONS:
        if collection not in _HASHED:
            for name in store_of(collection).names:
                first.setdefault(_stored_key(f"{collection}/{name}"), f"{collection}/{name}")
    twins = {
        name: first.setdefault(captured_network(graph_for(Workload(name))), name) for name in zoo_names()
    }
    return {name: twin for name, twin in twins.items() if name != twin}


if __name__ == "__main__":
    write_json(ZOO_NETWORKS, {"format": "cotenant-zoo-networks", "version": 1, "names": find_zoo_networks()})
