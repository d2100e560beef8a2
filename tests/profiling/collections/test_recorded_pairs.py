"""The two recordings of a network differ so that neither can be derived from the other."""

from __future__ import annotations

import numpy as np
import pytest

from profiling.collections.affine import NUMBERS, same_structure
from profiling.collections.store import store_of

DIFFERENT = {
    "bytes_read",
    "bytes_written",
    "backward_bytes",
    "saved_activation_bytes",
    "kernel_count",
    "forward_kernel_count",
}


@pytest.mark.parametrize("collection", ["torchvision", "hf"])
def test_operators_edges_work_and_shapes_are_shared(collection: str) -> None:
    store = store_of(collection)
    pairs = [
        (name, size) for name, size, p in store.rows if p == "amp" and (name, size, "fp32") in store.rows
    ]
    assert len(pairs) > 60
    differing: set[str] = set()
    for name, size in pairs[::5]:
        amp, fp32 = (store.line(name, size, precision) for precision in ("amp", "fp32"))
        assert same_structure(amp.structure, fp32.structure)
        assert [trait[0] for trait in amp.traits] == [trait[0] for trait in fp32.traits]
        assert np.array_equal(amp.fixed, fp32.fixed)
        differs = (amp.values(64) != fp32.values(64)).any(axis=0)
        differing |= {column for column, differ in zip(NUMBERS, differs, strict=True) if differ}
    assert differing == DIFFERENT
