"""PyTorch Image Models with `set_fast_norm`: layer and group norms stay in half precision under autocast.

It has the networks with such norms, in AMP, under the names and at the sizes of the plain collection. timm's
benchmark enables them with `--fast-norm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from profiling.collections.entry import Entry
from profiling.collections.sources import timm as plain


def entries() -> Iterator[Entry]:
    """Names of the timm on the import path whose norms can stay in half precision."""
    changed: set[str] = set()
    for entry in plain.entries(_with_fast_norms):
        if (entry.alias_of in changed) if entry.alias_of else _has_fast_norms(entry):
            changed.add(entry.name)
            yield replace(entry, precisions=("amp",))


def _has_fast_norms(entry: Entry) -> bool:
    job = next(entry.makers(entry.sizes[0]))(1, "amp")
    return any(getattr(module, "_fast_norm", False) for module in job.model.modules())


def _with_fast_norms(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if hasattr(module, "_fast_norm"):
            setattr(module, "_fast_norm", True)  # noqa: B010 - mypy: modules declare no such attribute
    return model
