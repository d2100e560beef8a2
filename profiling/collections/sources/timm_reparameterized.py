"""PyTorch Image Models as deployed: parallel branches and batch norms merged into convolutions.

It has the networks that timm's `reparameterize_model` changes (RepVGG, MobileOne, FastViT, RepViT, LeViT and
others), under the names and at the sizes of the plain collection.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import nn

from profiling.collections.entry import Entry
from profiling.collections.sources import timm as plain

_MERGERS = ("reparameterize", "fuse", "switch_to_deploy")


def entries() -> Iterator[Entry]:
    """Names of the timm on the import path whose networks change when merged."""
    changed: set[str] = set()
    for built, merged in zip(plain.entries(), plain.entries(_merged), strict=True):
        if merged.alias_of:
            is_changed = merged.alias_of in changed
        else:
            is_changed = _has_mergers(merged) and _parameters(built) != _parameters(merged)
        if is_changed:
            changed.add(merged.name)
            yield merged


def _has_mergers(entry: Entry) -> bool:
    """Whether the module that defines a network has layers that can be merged.

    Whether the network uses them shows in its number of parameters.
    """
    from timm.models import _registry as registry  # type: ignore[import-not-found]

    module = inspect.getmodule(registry._model_entrypoints[entry.name])
    classes = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, nn.Module)]
    return any(hasattr(c, name) for c in classes for name in _MERGERS)


def _parameters(entry: Entry) -> int:
    make = next(entry.makers(entry.sizes[0]))
    return sum(p.numel() for p in make(1, "amp").model.parameters())


def _merged(model: nn.Module) -> nn.Module:
    from timm.utils.model import reparameterize_model  # type: ignore[import-not-found]

    with torch.device("meta"):
        merged: nn.Module = reparameterize_model(model.eval())
    return merged.requires_grad_()
