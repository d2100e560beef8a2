"""Tracks the bytes of live tensors while a step runs on `meta`."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Container
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.capture import meta_cache
from profiling.training import TrainingJob, tensors_of


class LiveBytes:
    """Bytes of live storages, and their peak.

    Args:
        ignored: keys of storages that are not counted, such as parameters; may change later.
        freed: called with the key of each freed storage.

    Attributes:
        sizes: bytes of each live storage, by key.
        totals: total bytes after each new storage; the largest is the peak.
    """

    def __init__(self, ignored: tuple[Container[int], ...], freed: Callable[[int], None]) -> None:
        self.sizes: dict[int, float] = {}
        self.totals = [0.0]
        self._ignored = ignored
        self._freed = freed
        self._total = 0.0

    @property
    def peak(self) -> float:
        return max(self.totals)

    def add(self, tensor: Tensor, is_peak: bool = True) -> bool:
        """Count a tensor's storage if it is new. Returns whether it was; without `is_peak` it cannot set the peak."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.sizes or any(key in keys for keys in self._ignored) or not storage.nbytes():
            return False
        size = float(storage.nbytes())
        self.sizes[key] = size
        self._total += size
        if is_peak:
            self.totals.append(self._total)
        weakref.finalize(storage, self._free, key)
        return True

    def drop(self, key: int) -> None:
        """Stop counting a storage that is still live."""
        self._total -= self.sizes.pop(key, 0.0)

    def _free(self, key: int) -> None:
        self.drop(key)
        self._freed(key)


class _ForwardPass(TorchDispatchMode):
    def __init__(self, job: TrainingJob) -> None:
        super().__init__()
        self.depth = 0
        # Kept alive, as in `Recorder`.
        held = [*job.model.parameters(), *job.model.buffers()]
        self._resident = {t.untyped_storage()._cdata: t.untyped_storage() for t in held}
        self.live = LiveBytes((self._resident,), lambda _: None)
        for tensor in tensors_of(job.batch):
            self.live.add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            out = meta_cache.run(func, args, kwargs or {})
            for tensor in tensors_of(out):
                # Outside all modules runs the loss, which inference does not compute.
                self.live.add(tensor, is_peak=self.depth > 0)
        return out

    @contextmanager
    def inside(self, model: nn.Module) -> Any:
        handles: list[Any] = []

        def enter(module: nn.Module, args: Any) -> None:
            self.depth += 1

        def leave(module: nn.Module, args: Any, out: Any) -> None:
            self.depth -= 1

        try:
            for module in model.modules():
                handles.append(module.register_forward_pre_hook(enter))
                handles.append(module.register_forward_hook(leave, always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()


def forward_totals(job: TrainingJob) -> list[float]:
    """Live bytes after each new tensor of a forward pass in evaluation mode, without gradients and loss.

    Runs all phases of a job on `meta`, and restores the modules' training modes. Returns [0.0] if the job cannot run
    in evaluation mode.
    """
    modes = {module: module.training for module in job.model.modules()}
    tracker = _ForwardPass(job)
    try:
        job.model.eval()
        with warnings.catch_warnings(), torch.no_grad(), tracker.inside(job.model), tracker:
            warnings.simplefilter("ignore")  # about missing gradients, as of checkpointing
            memo: dict[str, Any] = {}
            for phase in job.phases:
                phase.loss(job.model, job.batch, memo)
    except Exception:  # evaluation may take another path, which needs data; only training is required
        return [0.0]
    finally:
        for module, mode in modes.items():
            module.training = mode
    return tracker.live.totals
