"""NVML's bindings, from initialisation to shutdown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from profiling.errors import UnavailableError


@contextmanager
def open_nvml() -> Iterator[Any]:
    """NVML's bindings, initialised.

    Raises:
        UnavailableError: the bindings or the driver are missing; its cause is their own error.
    """
    try:
        import pynvml
    except ImportError as error:
        raise UnavailableError("NVML is not installed", hint="pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except Exception as error:  # each version has its own classes
        raise UnavailableError(
            "no NVIDIA driver is running on this machine",
            got=str(error),
            hint="run this where nvidia-smi works, or name a device from the catalogue",
        ) from error
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()
