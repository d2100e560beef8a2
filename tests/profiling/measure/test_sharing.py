"""MPS and NVML if absent, and the MPS protocol with a stand-in for its control program."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.errors import InputError, UnavailableError
from profiling.measure.device_usage import UsageMeter
from profiling.measure.mps import MpsDaemon
from profiling.measure.nvml import NvmlSampler
from profiling.measure.request import RunRequest
from profiling.measure.session import Session
from profiling.measure.settings import MeasureSettings
from profiling.measure.sharing import sharing_in_force
from profiling.workload import Workload
from tests.profiling.measure.fake_nvml import FakeNvml, install
from tests.waiting import until

# The daemon keeps its output open, as a real one may. Its server's number is above those of processes.
_CONTROL = """#!/bin/sh
if [ "$1" = "-d" ]; then sleep 21 & env | grep CUDA > "%s"
  echo "[Control] no privilege" > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit %d; fi
read command
echo "$command" >> "%s"
[ "$command" = get_server_list ] && echo 99999999
[ "$command" = "get_client_list 99999999" ] && printf '%%s\n' 101 102
exit 0
"""


def control_program(folder: Path, exit_status: int = 0) -> Path:
    path, log = folder / "nvidia-cuda-mps-control", folder / "log"
    path.write_text(_CONTROL % (folder / "environment", exit_status, log))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return log


def test_mps_starts_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = control_program(tmp_path)
    monkeypatch.setattr("profiling.measure.mps.CLIENT", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with sharing_in_force("mps", "cuda", 2) as sharing:
        assert sharing.mode == "mps"
        pipes = {e["CUDA_MPS_PIPE_DIRECTORY"] for e in sharing.environments}
        assert len(sharing.environments) == 2
        assert len(pipes) == 1
        sharing.confirm(2)
        assert sharing.mode == "mps"
    assert log.read_text().splitlines()[-1] == "quit"
    assert not Path(pipes.pop()).exists()


def test_a_server_that_members_do_not_join_is_not_mps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Testing the daemon starts a server, which remains even if the members do not connect to it."""
    control_program(tmp_path)
    monkeypatch.setattr("profiling.measure.mps.CLIENT", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with sharing_in_force("mps", "cuda", 3) as sharing:
        sharing.confirm(3)
        assert sharing.mode == "time-slice"
        assert sharing.notes == ["MPS daemon runs, but only 2 of 3 members are its clients"]


def test_mps_that_does_not_start_degrades_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_program(tmp_path, exit_status=1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with sharing_in_force("mps", "cuda", 2) as sharing:
        assert sharing.mode == "time-slice"
        assert "did not start" in sharing.notes[0]


def test_mps_clients_without_a_context_degrade_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = control_program(tmp_path)
    monkeypatch.setattr("profiling.measure.mps.CLIENT", "import sys; sys.exit('cuInit answered 805')")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with sharing_in_force("mps", "cuda", 2) as sharing:
        assert sharing.mode == "time-slice"
        assert sharing.environments == [{}, {}]
        assert "cuInit answered 805" in sharing.notes[0]
        assert "control.log: [Control] no privilege" in sharing.notes[0]
    assert log.read_text().splitlines()[-1] == "quit"


@pytest.mark.parametrize(
    ("visible", "uuid"), [(None, "GPU-aaaa1111"), ("1", "GPU-bbbb2222"), ("1,0", "GPU-bbbb2222")]
)
def test_mps_and_its_clients_use_the_same_gpu_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, uuid: str
) -> None:
    """The daemon renumbers visible GPUs: if it sees only GPU 1, clients must call it GPU 0."""
    control_program(tmp_path)
    install(monkeypatch, FakeNvml())
    monkeypatch.setattr(
        "profiling.measure.mps.CLIENT", f"import os; assert os.environ['CUDA_VISIBLE_DEVICES'] == '{uuid}'"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with sharing_in_force("mps", "cuda", 2) as sharing:
        assert sharing.mode == "mps", sharing.notes
        assert [e["CUDA_VISIBLE_DEVICES"] for e in sharing.environments] == [uuid, uuid]
    assert f"CUDA_VISIBLE_DEVICES={uuid}" in (tmp_path / "environment").read_text().splitlines()


def test_limits_of_the_users_mps_do_not_affect_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_program(tmp_path)
    monkeypatch.setattr("profiling.measure.mps.CLIENT", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_LAUNCH_BLOCKING": "1",
    }.items():
        monkeypatch.setenv(name, value)
    started: list[dict[str, str]] = []

    def remember(*_: object, env: dict[str, str], **__: object) -> None:
        started.append(env)
        raise OSError("enough")

    with sharing_in_force("mps", "cuda", 1) as mps:
        daemon = (tmp_path / "environment").read_text()
        monkeypatch.setattr("profiling.measure.session.subprocess.Popen", remember)
        for environment in (*mps.environments, {}):
            with pytest.raises(OSError, match="enough"):
                Session((Workload("mlp"),), "cuda", MeasureSettings(), environments=[environment])
    assert "PERCENTAGE" not in daemon
    for variables in started:
        assert not {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_LAUNCH_BLOCKING"} & set(variables)
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in variables
    # Under MPS the run's own daemon; otherwise none, not even one that the machine runs at the default place.
    assert started[0]["CUDA_MPS_PIPE_DIRECTORY"] == mps.environments[0]["CUDA_MPS_PIPE_DIRECTORY"]
    assert started[1]["CUDA_MPS_PIPE_DIRECTORY"] == "/dev/null"


def test_a_daemon_does_not_outlive_a_killed_measurement(tmp_path: Path) -> None:
    log = control_program(tmp_path)
    code = (
        "import sys, time\n"
        "from profiling.measure import mps\n"
        "mps.CLIENT = ''\n"
        "with mps.MpsDaemon() as daemon:\n"
        "    print(daemon.environment['CUDA_MPS_PIPE_DIRECTORY'], flush=True)\n"
        "    time.sleep(60)\n"
    )
    variables = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": os.getcwd()}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=variables) as process:
        assert process.stdout is not None
        pipes = Path(process.stdout.readline().decode().strip())
        assert pipes.is_dir()
        process.kill()
    until(lambda: not pipes.exists(), "the daemon's folder is removed")
    assert log.read_text().splitlines()[-1] == "quit"


def test_mps_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with MpsDaemon() as daemon:
        assert daemon.environment == {}
        assert "not installed" in daemon.note
        assert daemon.clients() == []


def _has_gpu() -> bool:
    return not NvmlSampler().notes


def test_without_nvml_windows_are_empty_with_a_note() -> None:
    if _has_gpu():
        pytest.skip("this machine has a GPU")
    sampler = NvmlSampler()
    sampler.begin()
    usage = sampler.end()
    sampler.close()
    assert usage.samples == 0
    assert usage.utilization_ratio is None
    assert "NVML" in sampler.notes[0]


def test_memory_of_members_if_the_driver_hides_processes() -> None:
    """Reserved bytes are known per process; growth beyond them is contexts, split equally."""
    from profiling.measure.nvml import DeviceUsage

    if _has_gpu():
        pytest.skip("this machine has a GPU")
    with UsageMeter("cuda", MeasureSettings()) as meter:
        meter._baseline = 1e9
        answers = {
            i: {
                "boundaries": [0.0, 1.0],
                "cpu_s": 0.2,
                "rss_bytes": 1e8,
                "reserved_bytes": r,
                "allocated_bytes": r / 2,
            }
            for i, r in enumerate((2e9, 3e9))
        }
        meter.keep(
            "together", answers, DeviceUsage(memory_bytes=7e9, throttle_reasons=("sw-power-cap",)), [10, 11]
        )
        # The peak counts, whichever window it was in.
        less = {i: answer | {"reserved_bytes": 1e9, "rss_bytes": 1e7} for i, answer in answers.items()}
        meter.keep("together", less, DeviceUsage(memory_bytes=4e9), [10, 11])
        assert [meter.member(i)["rss_bytes"] for i in range(2)] == [1e8, 1e8]
        assert meter.member(0)["memory_bytes"] == pytest.approx(2.5e9)
        assert meter.member(1)["memory_bytes"] == pytest.approx(3.5e9)
        assert meter.member(0)["memory_source"] == "device-growth"
        whole = meter.whole()
        assert whole["memory_bytes"] == pytest.approx(6e9)
        assert whole["throttle_reasons"] == ["sw-power-cap"]
        meter._baseline = 8e9  # of other processes, which have ended since
        assert meter.whole()["memory_bytes"] is None
        assert meter.member(0)["memory_bytes"] == pytest.approx(2e9)


def test_mig_without_slices_degrades_with_a_note() -> None:
    with sharing_in_force("mig", "cuda", 2) as sharing:
        assert sharing.mode == "time-slice"
        assert "slices for 2 members" in sharing.notes[0]


def test_sm_shares_are_limits_of_each_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    control_program(tmp_path)
    monkeypatch.setattr("profiling.measure.mps.CLIENT", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with sharing_in_force("mps", "cuda", 3, [0.5, 1.0, 0.125]) as sharing:
        limits = [e.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") for e in sharing.environments]
        assert limits == ["50", None, "12.5"]
        sharing.compare_limits([0.5, 1.0, 0.125], [66, 132, 18], 132)
        assert sharing.notes == []
        sharing.compare_limits([0.5, 1.0, 0.125], [None, 132, 132], 132)
        assert sharing.notes == ["CUDA reports all 132 SMs to a job limited to 0.125 of them"]
        with pytest.raises(UnavailableError, match="only 2 of 3 members"):
            sharing.confirm(3)


def test_sm_shares_are_not_measured_without_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for mode, device in (("mps", "cuda"), ("mps", "cpu"), ("time-slice", "cuda"), ("mig", "cuda")):
        with (
            pytest.raises(UnavailableError, match="SM shares cannot be enforced"),
            sharing_in_force(mode, device, 1, [0.5]),
        ):
            pass
    with pytest.raises(InputError, match="require MPS"):
        RunRequest("solo", (Workload("mlp", sm_share_ratio=0.5),), "cuda")
