"""Imported by the members' processes if its folder is on their path: tensors of device `cuda` are on the CPU, and what
`profiling.measure` calls of `torch.cuda` behaves as on a GPU with 132 SMs."""

from __future__ import annotations

import struct
import sys
import time
from types import SimpleNamespace
from typing import Any


class Event:
    """Work on the CPU has ended when it is recorded. As in torch, only timing events that were recorded tell a time, in
    milliseconds and single precision."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self.enable_timing = enable_timing
        self.at_s: float | None = None

    def record(self) -> None:
        self.at_s = time.monotonic()

    def synchronize(self) -> None:
        if self.at_s is None:
            raise RuntimeError("the event was not recorded")

    def elapsed_time(self, end: Event) -> float:
        if not (self.enable_timing and end.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at_s is None or end.at_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(struct.unpack("f", struct.pack("f", 1e3 * (end.at_s - self.at_s)))[0])


def install() -> None:
    import torch
    from torch.overrides import TorchFunctionMode

    def on_cpu(value: Any) -> Any:
        is_cuda = isinstance(value, str | torch.device) and str(value).startswith("cuda")
        return torch.device("cpu") if is_cuda else value

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*map(on_cpu, args), **{k: on_cpu(v) for k, v in (kwargs or {}).items()})

    OnCpu().__enter__()
    for name, stand_in in {
        "Event": Event,
        "is_available": lambda: True,
        "current_stream": lambda: SimpleNamespace(synchronize=lambda: None),
        "synchronize": lambda: None,
        "reset_peak_memory_stats": lambda: None,
        "max_memory_allocated": lambda: 100 << 20,
        "max_memory_reserved": lambda: 200 << 20,
        "get_device_properties": lambda _device: SimpleNamespace(multi_processor_count=132),
    }.items():
        setattr(torch.cuda, name, stand_in)


if "profiling.measure.member" in sys.orig_argv:
    install()
