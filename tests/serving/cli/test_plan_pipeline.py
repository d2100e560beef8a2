"""`cotenant plan pipeline` as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.cli.lists import fold_lists
from tests.commands import printed, refused, run

COSTS = "forward_compute_time={f}, backward_compute_time={b}, activation_size={a}, parameter_size={p}"


@pytest.fixture
def profile(tmp_path: Path) -> str:
    layers = [(2.0, 4.0, 4e6, 1e6), (3.0, 6.0, 2e6, 2e6), (1.0, 1.0, 1e5, 9e7), (2.0, 3.0, 1e5, 1e6)]
    lines = [f"n{i} -- Conv -- " + COSTS.format(f=f, b=b, a=a, p=p) for i, (f, b, a, p) in enumerate(layers)]
    lines += [f"\tn{i} -- n{i + 1}" for i in range(len(layers) - 1)]
    path = tmp_path / "small.graph.txt"
    path.write_text("\n".join(lines))
    return str(path)


def test_folds_lists() -> None:
    typed = ["plan", "pipeline", "g.txt", "--workers", "4", "4", "--bandwidth", "12e9", "1.25e9", "--json"]
    assert fold_lists(typed) == [
        "plan", "pipeline", "g.txt", "--workers", "4", "--workers", "4",
        "--bandwidth", "12e9", "--bandwidth", "1.25e9", "--json",
    ]  # fmt: skip
    assert fold_lists(["plan", "pipeline", "--workers=4", "8", "g.txt"]) == [
        "plan", "pipeline", "--workers=4", "--workers", "8", "g.txt",
    ]  # fmt: skip
    assert fold_lists(["place", "--workers", "4", "4"]) == ["place", "--workers", "4", "4"]


def test_json(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    workers = ("--workers", "2", "2", "--bandwidth", "1e9", "1e8", "--memory-limit", "16e9")
    options = ("--compat", "--activation-compression-ratio", "1", "--json")
    answer = json.loads(printed(capsys, "plan", "pipeline", profile, *workers, *options))
    assert {"bottleneck_s", "data_parallel_s", "speedup", "stages"} <= answer.keys()
    assert answer["speedup"] == pytest.approx(answer["data_parallel_s"] / answer["bottleneck_s"])
    assert [n for stage in answer["stages"] for n in stage["nodes"]] == ["n0", "n1", "n2", "n3"]
    assert sum(stage["replicas"] for stage in answer["stages"]) == 4
    assert all({"nodes", "replicas", "memory_bytes"} <= stage.keys() for stage in answer["stages"])


def test_tables_and_picture(profile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "plan.svg"
    ask = ("plan", "pipeline", profile, "--bandwidth", "1e8", "--workers")
    code, out, err = run(capsys, *ask, "4", "--plot", picture)
    assert code == 0
    assert "Bottleneck" in out
    assert "wrote" in err
    assert picture.read_text().startswith("<?xml")
    for wrong in (tmp_path / "plan.gif", picture / "plan.svg"):
        code, out, _ = run(capsys, *ask, "4", "--plot", wrong)
        assert code == 2
        assert not out  # refused before the plan is made
    code, out, _ = run(capsys, *ask, "4", "--plot", picture, "--microbatches", "0", "--json")
    assert (code, out) == (2, "")
    assert json.loads(printed(capsys, *ask, "2", "--schedule", "1f1b", "--json"))["schedule"] == "1f1b"


def test_idle_workers_of_a_schedule_are_named(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--workers", "4", "--bandwidth", "1", "--schedule", "1f1b")
    shown = printed(capsys, "plan", "pipeline", profile, *options)
    assert "3 of 4 workers would not help and stay idle." in shown


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--memory-limit", "1e6"], 1, "stage"),
        (["--memory-limit", "1e6", "--compat", "--straight"], 1, "stage 1 of 2"),
        (["--bandwidth", "1e9"], 2, "different lengths"),
        (["--schedule", "1f1b", "--compat"], 2, "--schedule"),
        (["--schedule", "nonsense"], 2, "gpipe"),
        (["--schedule", "1f1b", "--depth", "9"], 1, "depth of 1 to 2"),
        (["--schedule", "pipedream", "--depth", "2"], 2, "depth has no effect on pipedream"),
        (["--schedule", "1f1b", "--depth", "0"], 2, "number of workers in a row"),
        (["--granularity", "module"], 2, "--granularity has no effect on a profile"),
        (["--depth", "2"], 2, "--schedule"),
        (["--recompute"], 2, "--schedule"),
        (["--fewer-machines"], 2, "--compat"),
    ],
)
def test_exit_codes(
    profile: str, more: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ("plan", "pipeline", profile, "--workers", "2", "--bandwidth", "1e8", *more)
    assert message in refused(capsys, *ask, code=code)


def test_graphs_without_times_need_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workers = ("--workers", "2", "--bandwidth", "1e9")
    assert "--device" in refused(capsys, "plan", "pipeline", "vgg11-cifar", *workers)
    refused(capsys, "plan", "pipeline", tmp_path / "no.txt", *workers)


def test_workers_have_the_memory_of_their_device(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--device", "v100", "--workers", "2", "--bandwidth", "1e10", "--json")
    ask = ("plan", "pipeline", "gpt-7b", *options)
    assert "no partition of gpt-7b fits" in refused(capsys, *ask, code=1)
    assert json.loads(printed(capsys, *ask, "--memory-limit", "1e12"))["never_measured"] == []
