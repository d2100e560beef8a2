"""GPU types and their public specifications: the catalogue, user-defined types, and this machine's devices."""

from profiling.devices.catalogue import (
    canonical,
    device_names,
    get_device,
    is_known,
    list_devices,
    load_device_file,
    runs_on,
)
from profiling.devices.discovery import discover, discover_cpu, discover_gpus
from profiling.devices.mig import has_mig, larger_slices, leaves_slices_open, mig_layout, split_device
from profiling.devices.spec import DeviceSpec

__all__ = [
    "DeviceSpec",
    "canonical",
    "device_names",
    "discover",
    "discover_cpu",
    "discover_gpus",
    "get_device",
    "has_mig",
    "is_known",
    "larger_slices",
    "leaves_slices_open",
    "list_devices",
    "load_device_file",
    "mig_layout",
    "runs_on",
    "split_device",
]
