from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from profiling.measure.member import Member, is_out_of_memory


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        # No room for the handle, which is created at the first matrix product.
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", False),
    ],
)
def test_libraries_report_in_their_own_words_that_memory_ran_out(message: str, expected: bool) -> None:
    assert is_out_of_memory(RuntimeError(message)) == expected


def test_errors_of_memory_need_no_words() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError())
    assert not is_out_of_memory(RuntimeError())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux records the peak of a process anew")
def test_memory_is_the_peak_within_steps() -> None:
    """Large activations are back with the system when a step ends."""
    member = Member(io.StringIO())
    member.device, before = "cpu", psutil.Process().memory_info().rss

    def step() -> None:
        torch.ones(2**26)
        member.stop.set()

    member.job = SimpleNamespace(step=step)
    command = {"start_s": 0.0, "window_s": 0.0, "min_steps": 1}
    assert member.do_phase(command)["rss_bytes"] > before + 2e8

    member.stop.clear()
    member.job = SimpleNamespace(step=member.stop.set)
    assert member.do_phase(command)["rss_bytes"] < before + 1e8, "the peak of an earlier phase"
