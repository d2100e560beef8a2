"""Whole runs on device `cuda`: real processes with a stand-in for torch.cuda, and NVML's bindings over a Python library."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from datasets.tables import validate_table
from profiling.measure.request import RunRequest
from profiling.measure.run import measure
from profiling.measure.settings import MeasureSettings
from profiling.measure.tables import tables
from tests.profiling.measure.fake_nvml import FakeMig, FakeNvml, install
from tests.profiling.measure.test_run import job

SETTINGS = MeasureSettings(
    repeats=1, window_s=0.4, alone_window_s=0.3, min_steps=3, max_warmup_s=0.2, sample_interval_s=0.02
)


@pytest.fixture(autouse=True)
def torch_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).with_name("cuda_stand_in")))
    # Neither dcgmi nor MPS.
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_pair_of_which_nvml_does_not_see_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: memory is the allocator's, and an equal part of what else the GPU's has grown."""
    library = install(monkeypatch, FakeNvml())
    library.processes.clear()
    jobs = job("plain", batch_size=256), job("plain", batch_size=64)
    record = measure(RunRequest("colocation", jobs, "cuda"), SETTINGS)
    json.dumps(record, allow_nan=False)
    assert (record["device"], record["sharing"]) == ("h200", "time-slice")
    for member in record["members"]:
        assert member["outcome"] == "ok", member["message"]
        assert member["sm_count"] == 132
        # How they compare is up to the machine.
        assert min(member["solo_step_time_s"], member["step_time_s"]) > 0
        assert (member["allocated_bytes"], member["memory_bytes"]) == (100 << 20, 200 << 20)
        assert member["memory_source"] == "device-growth"
        assert member["solo_utilization_ratio"] == pytest.approx(0.8)
    assert record["set"]["counters_source"] == "nvml-gpm"
    assert record["set"]["power_w"] == pytest.approx(512.0)
    frames = tables([record], "test")
    for name in ("workloads", "solo", "colocation"):
        assert len(validate_table(name, frames[name])) == 2
    assert library.opened == 0


def test_nvml_gives_no_utilisation_of_a_gpu_in_mig_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeMig("3g.71gb", "2g.35gb"))
    record = measure(RunRequest("solo", (job("plain"),), "cuda", "mig"), SETTINGS)
    (member,) = record["members"]
    assert (record["device"], record["sharing"], member["device"]) == ("h200", "mig", "h200:mig=3g")
    assert member["outcome"] == "ok", member["message"]
    assert member["solo_utilization_ratio"] is None
    assert "no rates: Not Supported" in record["notes"]
    assert len(validate_table("solo", tables([record], "test")["solo"])) == 1
