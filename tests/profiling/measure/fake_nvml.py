"""NVML's C library in Python, behind the real bindings, with nvidia-ml-py's signatures and structures."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest

NOT_SUPPORTED, NO_PERMISSION = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION
UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222")


class FakeNvml:
    """Two H200s; `without` names C functions that the driver lacks, `refuse` gives others' error codes.

    Attributes:
        asked: numbers of the GPUs that something was read from.
        samples: GPM samples allocated and not freed.
        opened: initialisations without their shutdown.
        busy_percent: utilisation of each GPU.
    """

    def __init__(self, without: tuple[str, ...] = (), refuse: dict[str, int] | None = None) -> None:
        self.without, self.refuse = without, refuse or {}
        self.asked: set[int] = set()
        self.samples = self.opened = 0
        self.processes = [(4711, 3 << 30)]
        self.busy_percent = 80

    def __getattr__(self, name: str) -> Any:
        if name in self.without or not name.startswith("nvml"):
            raise AttributeError(name)
        if name in self.refuse:
            return lambda *_: self.refuse[name]
        values = {
            "nvmlDeviceGetCount_v2": 2,
            "nvmlDeviceGetPowerUsage": 345_000,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlSystemGetCudaDriverVersion": 13000,
            "nvmlDeviceGetComputeMode": 0,
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4 | 0x1,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x8,
        }
        if name in values:

            def answer(*arguments: Any) -> int:
                self._note(arguments)
                arguments[-1]._obj.value = values[name]
                return 0

            return answer
        return getattr(self, f"_{name}")

    def _note(self, arguments: tuple[Any, ...]) -> None:
        if arguments and isinstance(arguments[0], pynvml.c_nvmlDevice_t):
            self.asked.add(ctypes.cast(arguments[0], ctypes.c_void_p).value - 1)  # type: ignore[operator]

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        self.opened += 1
        return 0

    def _nvmlShutdown(self) -> int:
        self.opened -= 1
        return 0

    def _nvmlErrorString(self, code: Any) -> bytes:
        return f"error {getattr(code, 'value', code)}".encode()

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        if index.value >= len(UUIDS):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle._obj.contents = pynvml.struct_c_nvmlDevice_t()
        ctypes.memmove(handle, ctypes.byref(ctypes.c_void_p(index.value + 1)), ctypes.sizeof(ctypes.c_void_p))
        return 0

    def _number(self, handle: Any) -> int:
        self._note((handle,))
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 1) - 1

    def _nvmlDeviceGetIndex(self, handle: Any, index: Any) -> int:
        index._obj.value = self._number(handle)
        return 0

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, _length: Any) -> int:
        text.value = UUIDS[int(ctypes.cast(handle, ctypes.c_void_p).value or 1) - 1].encode()
        return 0

    def _nvmlDeviceGetName(self, _handle: Any, text: Any, _length: Any) -> int:
        text.value = b"NVIDIA H200"
        return 0

    def _nvmlSystemGetDriverVersion(self, text: Any, _length: Any) -> int:
        text.value = b"580.65"
        return 0

    def _nvmlDeviceGetCudaComputeCapability(self, _handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0

    def _nvmlDeviceGetMigMode(self, _handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = pending._obj.value = 0
        return 0

    def _nvmlDeviceGetEccMode(self, _handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = pending._obj.value = 1
        return 0

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> int:
        count._obj.value = 0
        return 0

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        self._number(handle)
        rates._obj.gpu, rates._obj.memory = self.busy_percent, 25
        return 0

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, fields: Any) -> int:
        self._number(handle)
        for field in fields._obj[: count.value]:
            known = field.fieldId == pynvml.NVML_FI_DEV_POWER_INSTANT
            field.nvmlReturn = pynvml.NVML_SUCCESS if known else NOT_SUPPORTED
            field.value.uiVal = 512_000
        return 0

    def _nvmlDeviceGetMemoryInfo(self, _handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 150_000_000_000, 5 << 30
        return 0

    def _nvmlDeviceGetMemoryInfo_v2(self, _handle: Any, memory: Any) -> int:
        memory._obj.total, memory._obj.reserved, memory._obj.used = 150_000_000_000, 1 << 30, 4 << 30
        return 0

    def _nvmlDeviceGetClockInfo(self, _handle: Any, _kind: Any, clock: Any) -> int:
        clock._obj.value = 1980
        return 0

    _nvmlDeviceGetMaxClockInfo = _nvmlDeviceGetClockInfo

    def _nvmlDeviceGetTemperatureV(self, _handle: Any, temperature: Any) -> int:
        temperature._obj.temperature = 51
        return 0

    def _nvmlDeviceGetTemperature(self, _handle: Any, _sensor: Any, temperature: Any) -> int:
        temperature._obj.value = 49
        return 0

    def _nvmlDeviceGetPcieThroughput(self, _handle: Any, counter: Any, value: Any) -> int:
        value._obj.value = 1000 if counter.value == pynvml.NVML_PCIE_UTIL_TX_BYTES else 2000
        return 0

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, _handle: Any, count: Any, rows: Any) -> int:
        if rows is None:
            count._obj.value = len(self.processes)
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        count._obj.value = len(self.processes)
        for row, (pid, used) in zip(rows, self.processes, strict=False):
            row.pid, row.usedGpuMemory = pid, used
        return 0

    _nvmlDeviceGetComputeRunningProcesses_v2 = _nvmlDeviceGetComputeRunningProcesses_v3

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(self, _handle: Any, count: Any, _rows: Any) -> int:
        count._obj.value = 0
        return 0

    def _nvmlGpmQueryDeviceSupport(self, _handle: Any, support: Any) -> int:
        support._obj.isSupportedDevice = 1
        return 0

    def _nvmlGpmSampleAlloc(self, _sample: Any) -> int:
        self.samples += 1
        return 0

    def _nvmlGpmSampleGet(self, _handle: Any, _sample: Any) -> int:
        return 0

    def _nvmlGpmSampleFree(self, _sample: Any) -> int:
        self.samples -= 1
        return 0

    def _nvmlGpmMetricsGet(self, request: Any) -> int:
        body = request._obj
        if body.version != 1:
            return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        for i in range(body.numMetrics):
            body.metrics[i].nvmlReturn, body.metrics[i].value = 0, 10.0 * body.metrics[i].metricId
        return 0


class FakeMig(FakeNvml):
    """The first H200 is partitioned into `profiles`; handles of its slices are numbered from 101."""

    def __init__(self, *profiles: str) -> None:
        super().__init__()
        self.profiles = profiles

    @staticmethod
    def _point(handle: Any, number: int) -> int:
        handle._obj.contents = pynvml.struct_c_nvmlDevice_t()
        ctypes.memmove(handle, ctypes.byref(ctypes.c_void_p(number)), ctypes.sizeof(ctypes.c_void_p))
        return 0

    def _nvmlDeviceGetMigMode(self, _handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = pending._obj.value = 1
        return 0

    def _nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> int:
        count._obj.value = 7
        return 0

    def _nvmlDeviceGetUtilizationRates(self, _handle: Any, _rates: Any) -> int:
        return int(NOT_SUPPORTED)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, _handle: Any, index: Any, handle: Any) -> int:
        if index.value >= len(self.profiles):
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        return self._point(handle, 101 + index.value)

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:
        return self._point(handle, 101 + int(uuid.value.decode().removeprefix("MIG-")))

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, _slice: Any, handle: Any) -> int:
        return self._point(handle, 1)

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, length: Any) -> int:
        number = int(ctypes.cast(handle, ctypes.c_void_p).value or 1)
        if number < 101:
            return super()._nvmlDeviceGetUUID(handle, text, length)
        text.value = f"MIG-{number - 101}".encode()
        return 0

    def _nvmlDeviceGetName(self, handle: Any, text: Any, _length: Any) -> int:
        number = int(ctypes.cast(handle, ctypes.c_void_p).value or 1)
        text.value = b"NVIDIA H200" + (
            f" MIG {self.profiles[number - 101]}".encode() if number >= 101 else b""
        )
        return 0

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        number = int(ctypes.cast(handle, ctypes.c_void_p).value or 1)
        if number < 101:
            return int(NO_PERMISSION)
        memory._obj.total, memory._obj.used = 16 << 30, (number - 100) << 30
        return 0

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, rows: Any) -> int:
        number = int(ctypes.cast(handle, ctypes.c_void_p).value or 1)
        if number < 101:
            return int(NO_PERMISSION)
        count._obj.value = 1
        if rows is None:
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        rows[0].pid, rows[0].usedGpuMemory = 4600 + number, 1 << 30
        return 0


def install(monkeypatch: pytest.MonkeyPatch, library: FakeNvml) -> FakeNvml:
    """Put `library` where the bindings look for the C library."""
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return library
