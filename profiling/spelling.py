"""One spelling of a job (`in_short`), and short names of captured graphs for people (`short_hashes`)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from profiling.collections import collection_of, default_job
from profiling.errors import InputError
from profiling.workload import REGISTERED, Workload
from profiling.zoo import resolve

_GRAPH = re.compile(rf"\b({REGISTERED}[0-9a-f]{{16}})[0-9a-f]{{48}}\b")
_DEFAULTS = ("batch_size", "sequence_length", "image_size", "optimizer")


@lru_cache(maxsize=50_000)
def in_short(workload: Workload) -> Workload:
    """The job without the options that are its model's defaults, under the model's own name: the same for every
    spelling of a job. A registered graph has one of each, those of its capture, so they go without saying."""
    if workload.model.startswith(REGISTERED):
        return replace(workload, batch_size=None, sequence_length=None, image_size=None, optimizer=None)
    try:
        if collection_of(workload.model):
            default = default_job(workload.model)
            return _without(replace(workload, model=default.model), default)
        full = resolve(workload)
        return _without(full, resolve(Workload(full.model)))
    except InputError:
        return workload


def _without(workload: Workload, default: Workload) -> Workload:
    given: dict[str, Any] = {
        name: None for name in _DEFAULTS if getattr(workload, name) == getattr(default, name)
    }
    return replace(workload, **given)


def short_hashes(text: str) -> str:
    """`text` with 16 of the 64 digits of each captured graph's hash: as many as `cotenant capture` prints, and enough to
    name the graph in a SPEC."""
    return _GRAPH.sub(r"\1", text)
