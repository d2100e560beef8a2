from __future__ import annotations

import os

import pytest

from profiling.devices import discover, discover_cpu, discover_gpus
from profiling.devices.discovery import match_catalogue
from profiling.errors import UnavailableError


def test_cpu_is_found_with_what_the_process_may_use() -> None:
    spec = discover_cpu()
    assert spec.sm_count == len(os.sched_getaffinity(0))
    assert spec.memory_bytes > 2**28
    assert 1e8 < spec.clock_hz < 1e10
    assert spec.fp32_flops >= 16 * spec.clock_hz


def test_gpus_are_found_or_the_message_says_why_not() -> None:
    everything = [s.name for s in discover()]
    assert everything[-1] == "cpu"
    if len(everything) == 1:
        with pytest.raises(UnavailableError, match=r"driver|NVML"):
            discover_gpus()
    else:
        assert [s.name for s in discover_gpus()] == everything[:-1]


@pytest.mark.parametrize(
    ("title", "gib", "name"),
    [
        ("Tesla V100-SXM2-16GB", 16, "v100"),
        ("Tesla V100-SXM2-32GB", 31.7, "v100-32gb"),
        ("NVIDIA GeForce RTX 3090", 24, "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", 24, None),
        ("NVIDIA A100-SXM4-40GB", 39.4, "a100"),
        ("NVIDIA A100-SXM4-80GB", 79.2, "a100-80gb"),
        ("NVIDIA H200", 139.7, "h200"),
        ("Tesla K80", 11.2, "k80"),
        ("NVIDIA GeForce RTX 2080 Ti", 10.7, "rtx-2080-ti"),
        ("Quadro RTX 6000", 23.6, "quadro-rtx-6000"),
        ("Some new thing", 24, None),
    ],
)
def test_product_titles_match_the_catalogue(title: str, gib: float, name: str | None) -> None:
    found = match_catalogue(title, gib * 2**30)
    assert (found.name if found else None) == name
