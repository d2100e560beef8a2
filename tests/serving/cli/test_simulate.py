from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.errors import InputError
from scheduling.simulator import sweep
from scheduling.simulator.result import SimulationResult
from serving.cli.simulate import parse_columns, show_tenants
from tests.commands import printed, refused, run
from tests.once import gavel_tables
from tests.shared import shared_data


@pytest.fixture(scope="module")
def tables() -> Path:
    return gavel_tables()


TRACE = ("--trace", "synthetic:rate=30,jobs=12", "--cluster", "small-mixed")


def test_simulate_on_measured_pairs(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = ("--data", tables, "--belief", "truth")
    arguments = ("simulate", *TRACE, *measured, "--policy", "isacpp", "--json")
    code, out, _ = run(capsys, *arguments)
    body = json.loads(out)
    assert code == 0
    assert body["jobs"] == 12
    assert {"mean_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "mean_queue_s", "gpu_hours"} <= set(body)
    assert {"utilization_ratio", "restarts", "mean_decision_s", "p99_decision_s"} <= set(body)
    again = json.loads(run(capsys, *arguments)[1])
    for name in ("mean_jct_s", "makespan_s", "gpu_hours"):
        assert again[name] == body[name]


def test_jobs_that_tune_their_batch(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("simulate", *TRACE, "--data", str(tables), "--belief", "truth", "--policy", "fifo", "--json")
    fixed, tuned = (
        json.loads(run(capsys, *arguments, *more)[1]) for more in ((), ("--tunable-batches", "1"))
    )
    assert tuned["mean_jct_s"] < fixed["mean_jct_s"]
    err = refused(capsys, *arguments[:-3], "--policy", "icefrog", "--tunable-batches", "1")
    assert "icefrog does not tune batch sizes" in err


def test_saved_stops_are_a_part_of_realism(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--data", str(tables), "--belief", "truth", "--policy", "gavel", "--saved-stops", "--json")
    err = refused(capsys, "simulate", *TRACE, *options)
    assert "--saved-stops has no effect without --realism" in err
    out = printed(capsys, "simulate", *TRACE, *options, "--realism")
    assert json.loads(out)["restarts"] > 0


def test_more_jobs_end_early_as_in_helios(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--data", str(tables), "--belief", "truth", "--policy", "fifo", "--json", "--early-ends")

    def ended(cluster: str) -> int:
        out = printed(capsys, "simulate", *TRACE, *options, cluster, "--realism")
        return int(json.loads(out)["ended_early"])

    assert ended("helios") > ended("philly")
    for arguments, problem in (
        (("helios",), "--early-ends has no effect without --realism"),
        (("acme", "--realism"), "expected philly or helios"),
    ):
        err = refused(capsys, "simulate", *TRACE, *options, *arguments)
        assert problem in " ".join(err.split())


def test_compare_plots(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plots"
    measured = ("--data", tables, "--belief", "truth")
    code, text, _ = run(capsys, "compare", *TRACE, *measured, "--policies", "fifo,isacpp", "-o", out)
    assert code == 0
    assert "isacpp" in text
    names = {p.name for p in out.iterdir()}
    assert {"jct_cdf.png", "queue.png", "utilization.png", "gantt-fifo.png", "gantt-isacpp.png"} <= names
    assert [p["policy"] for p in json.loads((out / "results.json").read_text())["policies"]] == [
        "fifo",
        "isacpp",
    ]


def test_upstream_rounds_change_gavel(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = ("--data", tables, "--belief", "truth")
    common = ("compare", *TRACE, *measured, "--policies", "fifo,gavel", "--json")
    ours, upstream = (
        json.loads(run(capsys, *common, *more)[1])["policies"] for more in ((), ("--upstream-rounds",))
    )
    assert ours[0]["mean_jct_s"] == upstream[0]["mean_jct_s"]
    assert ours[1]["mean_jct_s"] < upstream[1]["mean_jct_s"]


def test_compare_writes_jobs_and_skips_infeasible_ones(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pandas as pd

    options = ("--trace", "synthetic:rate=30,jobs=12,gangs=0.5", "--cluster", "small-mixed", "--seed", "2",
               "--data", str(tables), "--belief", "truth")  # fmt: skip
    code, out, err = run(capsys, "compare", *options, "--policies", "fifo,exclusive")
    assert code == 1
    assert "can never run" in err
    assert "--skip-infeasible" in err
    path = tmp_path / "jobs.parquet"
    code, out, err = run(
        capsys, "compare", *options, "--policies", "fifo,exclusive", "--skip-infeasible", "--loads", ".5,.9",
        "--seeds", "2", "--jobs", str(path), "--json",
    )  # fmt: skip
    assert code == 0
    assert "can never run on this cluster, each under one seed or more:" in err
    bodies = json.loads(out)["policies"]
    assert bodies[0]["skipped"]
    assert bodies[0]["seeds"] == [2, 3]
    frame = pd.read_parquet(path)
    assert set(frame.policy) == {"fifo", "exclusive"}
    assert set(frame.load) == {0.5, 0.9}
    assert len(frame) + 4 * len(bodies[0]["skipped"]) == 2 * 2 * 2 * 12
    assert (frame.jct_s >= frame.queue_s - 1e-9).all()
    assert ".parquet" in refused(capsys, "compare", *options, "--jobs", "jobs.xlsx")


def test_compare_that_is_interrupted_keeps_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        sweep.Run("fifo", 0, SimulationResult("fifo", [], 0.0, 1, [])),
        sweep.Run("sjf", 0, error=sweep.INTERRUPTED),
    ]
    monkeypatch.setattr(sweep, "run_all", lambda *_: runs)
    code, out, err = run(capsys, "compare", *TRACE, "--policies", "fifo,sjf", "--json")
    assert code == 130
    assert ["jobs" in body for body in json.loads(out)["policies"]] == [True, False]
    assert "sjf failed: interrupted" in err


def test_compare_lists_jobs_that_any_policy_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose worker was lost cannot know; the next one does."""
    lost = sweep.Run("fifo", 0, error="Ray: the node was lost")
    known = sweep.Run("sjf", 0, SimulationResult("sjf", [], 0.0, 1, []), skipped=("job-1 is too wide",))
    monkeypatch.setattr(sweep, "run_all", lambda *_: [lost, known])
    code, _, err = run(capsys, "compare", *TRACE, "--policies", "fifo,sjf", "--skip-infeasible")
    assert code == 1
    assert "skipped 1 job that can never run on this cluster:\n  job-1 is too wide" in err


@pytest.mark.parametrize(("kind", "policy"), [("adaptive", "sia"), ("rigid", "gavel-sia")])
def test_sia_workload_by_name(kind: str, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared_data("sia", "workloads", "philly", "workload-1.csv")
    trace = ("--trace", f"sia:{path}", "--cluster", "sia-64", "--kind", kind, "--limit", "4")
    out = printed(capsys, "simulate", *trace, "--policy", policy, "--json")
    assert json.loads(out)["jobs"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "nowhere.csv", "--cluster", "small-mixed", "--policy", "best"), "unknown policy"),
        (("--trace", "sia:nowhere/a/b.csv", "--cluster", "sia-64"), "expected"),
        (("--trace", "synthetic:rate=1", "--cluster", "nowhere.yaml"), "no cluster"),
        (("--trace", "synthetic:rate=1", "--cluster", "."), "cannot read or write .: is a directory"),
        ((*TRACE, "--load", "0"), "load is out of range"),
        ((*TRACE, "--load", "90"), "a share of the cluster above 0, such as 0.9"),
        ((*TRACE, "--policy", "nowhere_at_all:POLICY"), "cannot be imported"),
        ((*TRACE, "--belief", "hope"), "one of predictor, truth"),
        ((*TRACE, "--source", "gavel"), "needs tables"),
        ((*TRACE, "--columns", "submit=time"), "CSV"),
        ((*TRACE, "--kind", "soft"), "strong-scaling"),
        (
            ("--trace", "synthetic:rate=1,jobs=1.5", "--cluster", "small-mixed"),
            "expected a whole number from 1 to 1e+07, got '1.5'",
        ),
        ((*TRACE, "--policy", "fifo", "--upstream-rounds"), "applies to none"),
        ((*TRACE, "--policy", "miso", "--upstream-rounds"), "applies to none"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "simulate", *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("cotenant: ")
    assert err.count("\n") == 1


def test_columns_may_have_spaces_and_each_field_once() -> None:
    assert parse_columns("submit=when, gpus = n") == {"submit": "when", "gpus": "n"}
    with pytest.raises(InputError, match="twice"):
        parse_columns("submit=when,submit=then")
    for text in ("submit=when,duration", "submit=when,"):
        with pytest.raises(InputError, match="FIELD=COLUMN"):
            parse_columns(text)


@pytest.mark.parametrize("option", ["--seed=-1", "--limit=0", "--limit=-1"])
def test_numbers_out_of_range(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "range" in refused(capsys, "simulate", *TRACE, option)


@pytest.mark.parametrize("policies", ["", "fifo,fifo"])
def test_policies_of_compare(policies: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "one or more, each once" in refused(capsys, "compare", *TRACE, "--policies", policies)


def test_place_explains_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("nodes: [{name: a, gpus: [{device: v100, speed: 3}]}]\n")
    err = refused(capsys, "place", "--cluster", str(tmp_path / "c.yaml"), "--job", "resnet18-cifar")
    assert "unknown field" in err
    err = refused(capsys, "place", "--cluster", str(tmp_path / "none.yaml"), "--job", "resnet18-cifar")
    assert "no cluster" in err


def test_slice_policies_beside_whole_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = ("--trace", "synthetic:rate=60,jobs=8,mean_s=600", "--cluster", "a100-8", "--seed", "1")
    out = printed(
        capsys, "compare", *trace, "--policies", "fifo,full,isacpp-slices", "-o", str(tmp_path), "--json"
    )
    fifo, full, slices = json.loads(out)["policies"]
    assert fifo["jobs"] == full["jobs"] == slices["jobs"] == 8
    assert full["restarts"] == 0
    # the same whole cards, but for the rounds of 10 s in which MISO's controllers look at the queue
    assert 0 <= full["mean_jct_s"] - fifo["mean_jct_s"] <= 10.0
    assert (tmp_path / "gantt-isacpp-slices.png").exists()


def test_unknown_policy_lists_those_of_slices(capsys: pytest.CaptureFixture[str]) -> None:
    assert "isacpp-slices" in refused(capsys, "simulate", *TRACE, "--policy", "isacpp-slice")


def test_a_range_does_not_hide_an_infeasible_job(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(
        "submit_time,duration,gpu_num,job_id,min_gpus,max_gpus\n0,60,8,large,1,16\n5,60,2,small,1,4\n"
    )
    options = ("--cluster", "small-mixed", "--seed", "3", "--data", str(tables), "--belief", "truth",
               "--policies", "fifo,pollux")  # fmt: skip
    gangs = ("--trace", "synthetic:rate=60,jobs=20,gangs=0.5", "--elastic", "1")
    for trace, named in ((("--trace", str(tmp_path / "t.csv")), "large requests 8 GPUs"), (gangs, "job-")):
        code, _, err = run(capsys, "compare", *options, *trace)
        assert code == 1
        assert "can never run" in err
        code, out, err = run(capsys, "compare", *options, *trace, "--skip-infeasible", "--json")
        assert code == 0
        assert named in err
        assert all(any(named in line for line in body["skipped"]) for body in json.loads(out)["policies"])


def test_ignored_rows_are_counted(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(
        "submit_time,duration,gpu_num\n0,60,1\n-,60,1\n10,1h,1\n20,2h,1\n30,60,1.5\n40,60,2\n"
    )
    trace = ("--trace", tmp_path / "t.csv", "--cluster", "small-mixed")
    common = (*trace, "--data", tables, "--belief", "truth")
    reasons = {
        "duration is not a number of seconds": 2,
        "submit_time is not a number of seconds": 1,
        "gpu_num is not a whole number of GPUs": 1,
    }
    code, out, err = run(capsys, "simulate", *common, "--policy", "fifo", "--json")
    body = json.loads(out)
    assert (code, body["jobs"], body["ignored_rows"]) == (0, 2, reasons)
    assert err.splitlines() == [
        "4 rows of the trace were ignored:",
        "  2 rows: duration is not a number of seconds, such as '1h', '2h'",
        "  1 row: submit_time is not a number of seconds, such as '-'",
        "  1 row: gpu_num is not a whole number of GPUs, such as '1.5'",
    ]
    code, out, again = run(capsys, "compare", *common, "--policies", "fifo,sjf", "--seeds", "2", "--json")
    assert code == 0
    assert [body["ignored_rows"] for body in json.loads(out)["policies"]] == [reasons, reasons]
    assert again == err


def test_ignored_tenants_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = tmp_path / "cluster.yaml"
    tenant = "{job: resnet18-cifar, iterations_left: 10}"
    cluster.write_text(f"nodes: [{{name: n, gpus: [{{device: v100, tenants: [{tenant}]}}]}}]\n")
    show_tenants(str(cluster))
    assert "1 tenant of" in capsys.readouterr().err
    show_tenants("small-mixed")
    assert not capsys.readouterr().err
