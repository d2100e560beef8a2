"""Real processes that train small models; figures are checked for plausibility, not for speed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profiling.campaign.plan import CampaignPlan, PlannedRun
from profiling.campaign.runner import run_campaign
from profiling.campaign.slices import read_results
from profiling.capture import graph_for
from profiling.errors import InputError, UnavailableError
from profiling.measure.device_usage import UsageMeter
from profiling.measure.record import failed_record
from profiling.measure.request import NotMeasurableError, RunRequest
from profiling.measure.run import _windows, measure
from profiling.measure.session import Session
from profiling.measure.settings import MeasureSettings
from profiling.measure.tables import tables
from profiling.workload import Workload
from tests.profiling.measure.fake_nvml import FakeNvml, install

QUICK = MeasureSettings(
    repeats=2, window_s=0.1, alone_window_s=0.05, min_steps=3, max_warmup_s=0.2, retries=0
)


def job(name: str, **options: int | str) -> Workload:
    return Workload(f"tests.profiling.measure.jobs:{name}", **options)  # type: ignore[arg-type]


def test_pair_alone_and_together(tmp_path: Path) -> None:
    from datasets.tables import validate_table

    members = job("plain", batch_size=256), job("plain", batch_size=64)
    record = measure(RunRequest("colocation", members, sharing="mps"), QUICK)
    json.dumps(record, allow_nan=False)
    assert record["sharing"] == "time-slice", "a CPU has no MPS"
    assert any("mps" in note for note in record["notes"])
    assert [m["outcome"] for m in record["members"]] == ["ok", "ok"]
    assert len(record["repeats"]) == 2
    for m in record["members"]:
        assert m["solo_step_time_s"] > 0
        assert m["step_time_s"] > 0
        assert m["memory_bytes"] > 1e7
        assert 0 < m["utilization_ratio"] <= 1
        assert m["total_layers"] == 4
        # Medians over two repeats: the mean of ratios times the mean of their inverses is never below 1.
        assert m["throughput_ratio"] > 0
        assert m["throughput_ratio"] * m["slowdown"] >= 1 - 1e-9
    frames = tables([record], "test")
    for name in ("workloads", "solo", "colocation"):
        assert len(validate_table(name, frames[name])) == 2


def test_only_the_member_that_hangs_counts_as_dead() -> None:
    with Session((job("plain"), job("hanging")), "cpu", QUICK) as session:
        for index in (0, 1):
            assert session.warm(index) is not None
        session.settings = replace(QUICK, timeout_s=5.0)
        # Long enough for the 200 steps before the hang on a busy machine, too.
        answers = session.phase((0, 1), 1.5)
        assert list(answers) == [0]
        assert [m.outcome for m in session.members] == ["ok", "killed"]


def test_no_process_stays_if_a_later_one_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def only_once(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise OSError(24, "Too many open files")
        started.append(popen(*args, **options))
        return started[0]

    monkeypatch.setattr("profiling.measure.session.subprocess.Popen", only_once)
    with pytest.raises(OSError, match="Too many open files"):
        Session((job("plain"), job("plain")), "cpu", QUICK)
    assert started[0].poll() is not None


def test_a_window_may_last_longer_than_the_timeout() -> None:
    with Session((job("plain"),), "cpu", QUICK) as session:
        session.warm(0)
        session.settings = replace(QUICK, timeout_s=1.5)
        assert list(session.phase((0,), 3.0)) == [0]


def test_rows_of_a_factory_name_its_graph() -> None:
    """Code named in a table is not run, so training could not read its rows."""
    from datasets.tables import validate_table

    record = measure(RunRequest("colocation", (job("captured", batch_size=32), job("plain"))), QUICK)
    name = "tests.profiling.measure.jobs:captured"
    assert record["members"][0]["workload"] == f"{name}:batch_size=32"
    frames = tables([record], "test")
    for table in ("workloads", "solo", "colocation"):
        row = validate_table(table, frames[table]).iloc[0]
        graph = graph_for(Workload.parse(row["workload"]))
        assert (row["architecture"], row["batch_size"], graph.batch_size) == (name, 32, 32)
    assert frames["measurements"]["workload"][0] == f"{name}:batch_size=32"
    # Two spellings, or two factories, of one graph are one job.
    again = {**record["members"][0], "workload": "other:make"}
    both = tables([record, {**record, "id": "again", "members": [again, record["members"][1]]}], "test")
    assert all(len(validate_table(table, both[table])) == 2 for table in ("workloads", "solo"))
    # A factory of a workload and a device cannot be captured; its rows keep its name.
    assert frames["solo"]["workload"][1] == "tests.profiling.measure.jobs:plain:data_on_device=true"
    assert any("jobs:plain has no graph" in note for note in record["notes"])


def test_a_loss_that_is_not_finite_is_noted() -> None:
    record = measure(RunRequest("colocation", (job("captured"), job("nan"))), QUICK)
    assert [member["outcome"] for member in record["members"]] == ["ok", "ok"]
    assert [note.partition(", ")[0] for note in record["notes"]] == [
        f"{job('nan')}: the loss is infinite or NaN"
    ]


@pytest.mark.parametrize("name", ["detached", "forward_only"])
@pytest.mark.parametrize("host_input", ["resident", "loader"])
def test_a_step_that_trains_nothing_is_refused(name: str, host_input: str) -> None:
    settings = replace(QUICK, host_input=host_input, loader_processes=0)
    with pytest.raises(NotMeasurableError, match="no parameter gets a gradient") as caught:
        measure(RunRequest("solo", (job(name),)), settings)
    assert caught.value.message.count(name) == 1


def test_a_step_of_inference_trains_nothing() -> None:
    record = measure(RunRequest("solo", (job("forward_only", mode="inference"),)), QUICK)
    assert record["members"][0]["outcome"] == "ok"


def test_notes_and_errors_name_a_job_once() -> None:
    record = measure(RunRequest("solo", (job("plain"),)), QUICK)
    (note,) = (note for note in record["notes"] if "has no graph" in note)
    assert note.count("jobs:plain") == 1
    with pytest.raises(NotMeasurableError) as caught:
        measure(RunRequest("solo", (job("fails", batch_size=32),)), QUICK)
    assert caught.value.message.count("jobs:fails") == 1
    failed = failed_record(RunRequest("solo", (job("fails"),)), QUICK, "cpu", f"{job('fails')}: why", 0.0)
    assert failed["members"][0]["message"] == "why"


def test_member_that_runs_out_of_memory_is_a_labelled_row() -> None:
    record = measure(RunRequest("colocation", (job("plain"), job("out_of_memory"))), QUICK)
    first, second = record["members"]
    assert first["outcome"] == "ok"
    assert second["outcome"] == "out-of-memory"
    assert "out of memory" in second["message"]
    frames = tables([record], "test")
    assert "colocation" not in frames
    assert list(frames["measurements"]["outcome"]) == ["ok", "out-of-memory"]


def test_a_measurement_is_kept_if_its_graph_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cotenant").write_text("a file where the cache should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    record = measure(RunRequest("solo", (job("captured"),)), QUICK)
    assert record["members"][0]["solo_step_time_s"] > 0
    assert any("XDG_CACHE_HOME" in note for note in record["notes"])


@pytest.mark.parametrize(("name", "outcome"), [("broken", "failed"), ("killed", "out-of-memory")])
def test_member_that_dies_while_building(name: str, outcome: str) -> None:
    record = measure(RunRequest("solo", (job(name),)), QUICK)
    assert record["members"][0]["outcome"] == outcome
    assert record["members"][0]["message"]


def test_frozen_prefix_with_and_without_cache() -> None:
    frozen = job("plain", batch_size=512, frozen_prefix=3)
    plain = measure(RunRequest("freezing", (frozen,)), QUICK)
    cached = measure(RunRequest("freezing", (frozen,), cached_activations=True), QUICK)
    frames = tables([plain, cached], "test")
    assert list(frames["freezing"]["frozen_prefix"]) == [3, 3]
    assert list(frames["freezing"]["note"].fillna("")) == ["", "cached-activations"]
    assert frames["freezing"]["total_layers"].eq(4).all()


def test_operator_times_add_up_to_the_step() -> None:
    record = measure(RunRequest("operators", (job("mlp", batch_size=256),)), QUICK)
    rows = record["operators"]["rows"]
    assert {r["module"] for r in rows if r["kind"] == "linear"} == {"0", "2", "4", "6"}
    assert all(r["forward_s"] > 0 and r["backward_s"] > 0 for r in rows if r["kind"] == "linear")
    # a factory that takes a workload and a device has no graph, but its times are kept
    assert any("matched to a graph" in note for note in record["notes"])
    assert "graph" not in record
    total = sum(r["forward_s"] + r["backward_s"] for r in rows) + record["operators"]["optimizer_s"]
    assert 0 < total < 3 * record["operators"]["step_time_s"]


@pytest.mark.parametrize(
    ("name", "host_input", "is_resident"),
    [("captured", "resident", True), ("captured", "loader", False), ("plain", "resident", True)],
)
def test_rows_state_whether_the_batch_stayed_on_the_device(
    name: str, host_input: str, is_resident: bool
) -> None:
    request = RunRequest("solo", (job(name, batch_size=8),))
    record = measure(request, replace(QUICK, host_input=host_input, loader_processes=0))
    (row,) = tables([record], "test")["solo"]["workload"]
    assert Workload.parse(row).data_on_device == is_resident


def test_a_loader_feeds_no_job_whose_data_wait_on_the_device() -> None:
    request = RunRequest("solo", (job("plain", data_on_device=True),))
    with pytest.raises(InputError, match="a loader feeds no job whose data wait on the device"):
        measure(request, replace(QUICK, host_input="loader"))


def test_loader_feeds_every_step() -> None:
    settings = MeasureSettings(
        repeats=1, window_s=0.1, min_steps=2, max_warmup_s=0.2, host_input="loader", loader_processes=1
    )
    record = measure(RunRequest("solo", (job("plain"),)), settings)
    assert record["members"][0]["outcome"] == "ok"
    assert record["host_input"] == "loader"
    assert record["members"][0]["host_input_bytes"] == 64 * 128 * 4


@pytest.mark.parametrize("rewrapped", [True, False])
def test_two_ranks_with_a_frozen_prefix(rewrapped: bool) -> None:
    request = RunRequest("ddp", (job("plain", frozen_prefix=2),), processes=2, rewrapped=rewrapped)
    record = measure(request, QUICK)
    member = record["members"][0]
    assert member["outcome"] == "ok", member["message"]
    assert member["solo_step_time_s"] > 0
    assert member["sync_time_s"] >= 0
    frame = tables([record], "test")["freezing"]
    assert list(frame["gpus"]) == [2]
    assert list(frame["note"].fillna("")) == ["" if rewrapped else "wrapped-before-freezing"]


def test_windows_of_several_ranks_have_the_requested_length_despite_slow_first_steps() -> None:
    """Steps of 10 ms after two of 1 s: a window of 0.3 s has 30 steps, not the minimum."""
    settings = replace(QUICK, repeats=1, window_s=0.3)
    steps: list[int] = []
    ask_all = Session.ask_all

    def counted(session: Session, **command: Any) -> Any:
        steps.append(command["count"])
        return ask_all(session, **command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "ask_all", counted)
        record = measure(RunRequest("ddp", (job("slow_start"),), processes=2), settings)
    assert record["members"][0]["outcome"] == "ok", record["members"][0]["message"]
    assert record["members"][0]["solo_step_time_s"] < 0.1
    assert min(steps[-2:]) > settings.min_steps


def test_a_precision_that_the_device_lacks_is_refused(tmp_path: Path) -> None:
    """Torch would run TF32 on a CPU as FP32, and a table would name it TF32."""
    request = RunRequest("solo", (replace(job("plain"), precision="tf32"),))
    with pytest.raises(InputError, match="cpu has no TF32"):
        measure(request, QUICK)
    final = run_campaign(CampaignPlan("tf32", "cpu", (PlannedRun(request, 1.0),), QUICK), tmp_path)
    assert (final.done, final.failed) == (1, 1)


def test_cuda_without_a_gpu_is_an_error() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UnavailableError, match=r"NVML|NVIDIA|GPU"):
        measure(RunRequest("solo", (job("mlp"),), device="cuda"), QUICK)


def test_a_gpu_that_torch_cannot_use_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML responds, but torch has no CUDA or finds no driver: such runs of a campaign must not be stored."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    install(monkeypatch, FakeNvml())
    request = RunRequest("solo", (job("plain"),), device="cuda")
    plan = CampaignPlan("gpu", "cuda", (PlannedRun(request, 1.0),), QUICK)
    with pytest.raises(UnavailableError, match=r"cannot use the GPU.*UV_TORCH_BACKEND"):
        run_campaign(plan, tmp_path)
    assert read_results([tmp_path]).records == {}


@pytest.mark.parametrize(("kind", "count"), [("solo", 2), ("colocation", 1), ("freezing", 0), ("nothing", 1)])
def test_invalid_requests(kind: str, count: int) -> None:
    with pytest.raises(InputError):
        RunRequest(kind, tuple(job("mlp", batch_size=i + 1) for i in range(count)))


def test_settings_out_of_range() -> None:
    with pytest.raises(InputError, match="repeats"):
        MeasureSettings(repeats=0)
    with pytest.raises(InputError, match="host_input"):
        MeasureSettings(host_input="tape")
    with pytest.raises(InputError, match="unknown"):
        MeasureSettings.from_mapping({"windows": 3})


def test_request_round_trip() -> None:
    request = RunRequest("freezing", (job("mlp", frozen_prefix=2),), cached_activations=True)
    again = RunRequest.from_mapping(json.loads(json.dumps(request.to_mapping())))
    assert again == request
    assert again.run_id(MeasureSettings()) == request.run_id(MeasureSettings())


@pytest.mark.parametrize(("busy", "verdict"), [((3, 4), "stable"), ((3, 6), "disturbed")])
def test_a_run_is_disturbed_if_more_than_a_third_of_its_repeats_are(
    busy: tuple[int, ...], verdict: str
) -> None:
    """Two windows of one repeat are one disturbed repeat of five, two windows of two repeats are two."""

    class Steady:
        """Two members, whose steps take 10 ms alone and 20 ms together; others use the core in windows `busy`."""

        alive = (0, 1)
        windows = -1  # the first one warms up

        def __init__(self) -> None:
            self.members = [
                SimpleNamespace(alive=True, outcome="ok", message="", process=SimpleNamespace(pid=i))
                for i in (1, 2)
            ]

        def phase(self, active: Sequence[int], _window_s: float) -> dict[int, dict[str, Any]]:
            step_time_s = 0.01 * len(active)
            share = (0.5 if self.windows in busy else 1.0) / len(active)
            self.windows += 1
            boundaries = [i * step_time_s for i in range(11)]
            answer = {"boundaries": boundaries, "cpu_s": share * boundaries[-1], "rss_bytes": 1e8}
            return dict.fromkeys(active, answer)

    settings = replace(QUICK, repeats=5, retries=0)
    record: dict[str, Any] = {"members": [{}, {}]}
    with UsageMeter("cpu", settings) as meter:
        _windows(Steady(), settings, meter, record, lambda _: None)  # type: ignore[arg-type]
    assert [m["verdict"] for m in record["members"]] == [verdict] * 2
    assert record["disturbed_windows"] == len(busy)
