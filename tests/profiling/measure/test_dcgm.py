"""Profiling counters from a `dcgmi` that is a shell script."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.measure.dcgm import DcgmCounters, parse_row
from profiling.measure.device_usage import UsageMeter
from profiling.measure.nvml import NvmlSampler
from profiling.measure.settings import MeasureSettings
from tests.profiling.measure.fake_nvml import NO_PERMISSION, FakeNvml, install
from tests.waiting import until


@pytest.fixture(autouse=True)
def no_dcgm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


_DCGMI = """#!/bin/sh
echo "$@" >> "{log}"
case "$5" in
  *1012*) echo "Error setting watches. Result: -33: This request is serviced by a module of DCGM that is not currently loaded"; exit 1;;
esac
echo "#Entity   SMACT        SMOCC        TENSO        DRAMA        PCITX                 PCIRX"
echo "ID"
echo "GPU 0     N/A          N/A          N/A          N/A          N/A                   N/A"
while true; do
  echo "GPU 0     0.750        0.300        N/A          0.500        1000000               2000000"
  sleep 0.05
done
"""


def fake_dcgmi(folder: Path, text: str) -> Path:
    log = folder / "dcgmi.log"
    path = folder / "dcgmi"
    path.write_text(text.format(log=log))
    path.chmod(0o755)
    return log


def test_dcgm_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVLink, reading all fields fails, so fewer are read; means over the window skip N/A."""
    install(monkeypatch, FakeNvml()).processes.clear()
    log = fake_dcgmi(tmp_path, _DCGMI)
    with UsageMeter("cuda", MeasureSettings()) as meter:
        answer = {"boundaries": [0.0, 1.0], "cpu_s": 0.2, "rss_bytes": 1e8}
        for _ in range(2):
            meter.begin()
            until(lambda: meter._sampler._dcgm.end() != {}, "DCGM samples")  # type: ignore[union-attr]
            meter.keep("together", {0: answer, 1: answer}, meter.end(), [10, 11])
        whole = meter.whole()
        sampler = meter._sampler
        assert sampler is not None
        assert sampler._dcgm is not None
        process = sampler._dcgm._process
    assert whole["counters"] == pytest.approx(
        {
            "sm_active_ratio": 0.75,
            "sm_occupancy_ratio": 0.3,
            "memory_bandwidth_active_ratio": 0.5,
            "pcie_send_bytes_per_s": 1e6,
            "pcie_receive_bytes_per_s": 2e6,
        }
    )
    assert whole["counters_source"] == "dcgm"
    assert meter.notes == []
    assert [line.split()[:3] for line in log.read_text().splitlines()] == [["dmon", "-i", "0"]] * 2
    assert process is not None
    assert process.poll() is not None


def test_dcgm_samples_that_began_before_the_window_are_left_out() -> None:
    """They come every 0.1 s, and tell of the 0.1 s before a time that is up to 0.1 s ago."""
    counters = DcgmCounters()
    counters._began = 10.0
    counters._samples = [(when, {"sm_active_ratio": when}) for when in (10.05, 10.15, 10.25, 10.35)]
    assert counters.end() == pytest.approx({"sm_active_ratio": 10.3})


def test_a_counter_that_is_no_number_is_left_out() -> None:
    assert parse_row("GPU 0     NAN          0.5", ["a", "b"]) == {"b": 0.5}


def test_unresponsive_dcgm_falls_back_to_nvml_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, FakeNvml(refuse={"nvmlGpmSampleGet": NO_PERMISSION}))
    log = fake_dcgmi(
        tmp_path,
        '#!/bin/sh\necho x >> "{log}"\necho "Error: unable to establish a connection to the specified host"; exit 1\n',
    )
    sampler = NvmlSampler(interval_s=0.01)
    sampler.begin()
    until(lambda: any("unable to establish a connection" in note for note in sampler.notes), "DCGM gives up")
    until(lambda: bool(sampler._series.get("utilization_ratio")), "utilisation")
    usage = sampler.end()
    assert usage.counters == {}
    assert usage.utilization_ratio == pytest.approx(0.8)
    sampler.close()
    assert len(log.read_text().splitlines()) == 3
    assert any("unable to establish a connection" in note for note in sampler.notes)
