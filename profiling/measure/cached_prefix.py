"""Cached activations: frozen layers return outputs recorded once, as from a warm activation cache.

Only the member's process imports this module, so torch is imported at the top.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from profiling.training import tensors_of


def cache_prefix(job: Any, frozen: list[torch.nn.Module]) -> None:
    """Replace the forward pass of `frozen` layers by their recorded outputs. For timing only.

    One step records each layer's outputs, which are replayed from then on. The output of the last frozen layer, the
    one that a real cache would load, is copied from host memory at every use, so the load time is part of the step.
    Functional operators between frozen layers (activations, additions) still run. They are a small part of the
    prefix, so the measured saving is slightly too low, never too high.

    Args:
        job: training job on its device; it takes one step.
        frozen: modules of the frozen prefix.
    """
    recorded: dict[torch.nn.Module, list[Any]] = {layer: [] for layer in frozen}

    def record(layer: torch.nn.Module, _inputs: Any, output: Any) -> None:
        recorded[layer].append(tree_map_only(torch.Tensor, lambda t: t.detach().clone(), output))

    # A module with trained submodules (such as a root module with its own embedding) must still run.
    frozen = [m for m in frozen if not any(p.requires_grad for p in m.parameters())]
    handles = [layer.register_forward_hook(record) for layer in frozen]
    job.step()
    for handle in handles:
        handle.remove()
    used = [layer for layer in frozen if recorded[layer]]
    for layer in used:
        layer.forward = _Replay(recorded[layer], load=layer is used[-1])  # type: ignore[method-assign,assignment]


class _Replay:
    """Returns recorded outputs in turn, because a layer may run several times per step."""

    def __init__(self, outputs: list[Any], load: bool) -> None:
        self.outputs, self.turn = outputs, 0
        self.host = [tree_map_only(torch.Tensor, _to_host, output) for output in outputs] if load else None

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        index = self.turn % len(self.outputs)
        self.turn += 1
        if self.host is not None:
            _load(self.outputs[index], self.host[index])
        return self.outputs[index]


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().pin_memory() if tensor.is_cuda else tensor.clone()


def _load(resident: Any, host: Any) -> None:
    for target, source in zip(tensors_of(resident), tensors_of(host), strict=True):
        target.copy_(source, non_blocking=True)
