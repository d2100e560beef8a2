from __future__ import annotations

import copy
import json

import pytest
import typer
from typer.testing import CliRunner

from profiling.errors import InfeasibleError, InputError, UnknownNameError
from scheduling.ring.case import RingCase
from serving.cli.plan_ring import ring
from tests import commands

JOB = {
    "gpus": 4,
    "gradient_size": 100,
    "forward_s_per_sample": 0.0002,
    "batch_size": 64,
    "backward_s": 0.02,
    "iterations": 1000,
}
CASE = {
    "cluster": {
        "inter_bandwidth": 1250,
        "intra_bandwidth": 50000,
        "reduce_speed": 20000,
        "alpha": 0.2,
        "xi1": 1,
        "xi2": 0.001,
        "servers": [4, 4, 8],
    },
    "jobs": {"a": JOB, "b": JOB, "c": JOB},
    "placement": {"a": {"0": 2, "1": 2}, "b": {"0": 2, "1": 2}, "c": {"2": 4}},
}

app = typer.Typer()
app.command()(ring)


def run(tmp_path, case, *options):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(case))
    return CliRunner().invoke(app, [str(path), *options])


def test_json_has_the_documented_shape(tmp_path):
    result = run(tmp_path, CASE, "--json")
    assert result.exit_code == 0
    jobs = json.loads(result.stdout)["jobs"]
    assert set(jobs) == {"a", "b", "c"}
    assert jobs["a"] == {
        "contention": 2,
        "bandwidth": pytest.approx(568.181818),
        "iteration_time_s": pytest.approx(0.30255),
    }
    assert jobs["c"]["contention"] == 0
    assert jobs["c"]["iteration_time_s"] == pytest.approx(0.04055)


def test_literal_and_clamp_differ_below_one(tmp_path):
    case = copy.deepcopy(CASE)
    case["cluster"]["xi1"] = 0.25
    clamped = json.loads(run(tmp_path, case, "--json").stdout)["jobs"]["a"]
    literal = json.loads(run(tmp_path, case, "--literal", "--json").stdout)["jobs"]["a"]
    assert clamped["bandwidth"] == 1250
    assert literal["bandwidth"] == pytest.approx(1250 / 0.4)


def test_table_names_servers(tmp_path):
    result = run(tmp_path, CASE)
    assert result.exit_code == 0
    assert "2 on 0, 2 on 1" in result.stdout


def _with(path, value):
    case = copy.deepcopy(CASE)
    at = case
    for key in path[:-1]:
        at = at[key]
    if value is KeyError:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return case


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["cluster"], KeyError, "lacks 'cluster'"),
        (["cluster"], [], "cluster is not an object"),
        (["cluster", "alpha"], KeyError, "lacks 'alpha'"),
        (["cluster", "alpha"], "0.2", "cluster.alpha"),
        (["cluster", "alpha"], True, "cluster.alpha"),
        (["cluster", "alpha"], 10**400, "cluster.alpha"),
        (["cluster", "xi1"], 0, "xi1"),
        (["cluster", "beta"], 1, "unknown field"),
        (["cluster", "servers"], [4, 4.5], "cluster.servers"),
        (["cluster", "servers"], [0], "cluster.servers"),
        (["cluster", "servers"], [], "servers"),
        (["jobs"], {}, "jobs is empty"),
        (["jobs", "a", "gpus"], 4.0, "jobs.a.gpus"),
        (["jobs", "a", "gpus"], 3, "not placed completely"),
        (["jobs", "a", "batch_size"], -1, "batch_size"),
        (["jobs", "a", "arrival_s"], -1, "jobs.a.arrival_s"),
        (["jobs", "a", "arrival_s"], float("nan"), "jobs.a.arrival_s"),
        (["cluster", "fabric"], {"oversubscription": 4}, "no effect on servers under one switch"),
        (["jobs", "a", "gradient_size"], float("inf"), "gradient_size"),
        (["placement", "a"], {"0": 1, "1": 2}, "not placed completely"),
        (["placement", "a"], {"7": 4}, "names server 7"),
        (["placement", "a"], {"-1": 4}, "names a server"),
        (["placement", "a"], {"0": 2.0, "1": 2}, "placement.a.0"),
        (["placement", "a"], {"0": 4}, "server 0 is over its capacity"),
        (["placement", "a"], KeyError, "'a' is not in placement"),
        (["placement", "q"], {"2": 1}, "names job 'q'"),
    ],
)
def test_bad_cases_are_named(path, value, words):
    with pytest.raises(InputError, match=words) as caught:
        RingCase.from_mapping(_with(path, value))
    assert caught.value.exit_code == 2


def test_a_case_that_overflows_is_refused(tmp_path):
    case = _with(["jobs", "a", "gradient_size"], 1e308)
    case["cluster"]["inter_bandwidth"] = 1e-300
    result = run(tmp_path, case, "--json")
    assert isinstance(result.exception, InputError)


def test_servers_without_gpus_of_a_job_do_not_count():
    case = RingCase.from_mapping(_with(["placement", "c"], {"0": 0, "2": 4}))
    assert case.placement is not None
    assert case.placement["c"] == {2: 4}


@pytest.mark.parametrize(
    "policy", ["sjf-bco", "sjf-bco-literal", "list", "first-fit", "random", "local-search"]
)
@pytest.mark.parametrize("options", [(), ("--slot-s", "10")])
def test_policy_schedules_the_jobs(tmp_path, policy, options):
    case = {key: CASE[key] for key in ("cluster", "jobs")}
    result = run(tmp_path, case, "--policy", policy, "--json", *options)
    assert result.exit_code == 0, result.exception
    body = json.loads(result.stdout)
    assert body["makespan_s"] == max(entry["end_s"] for entry in body["jobs"].values())
    assert body["makespan_s"] >= body["lower_bound_s"] > 0
    assert all(sum(entry["placement"].values()) == 4 for entry in body["jobs"].values())
    assert "makespan" in run(tmp_path, case, "--policy", policy).stdout


def test_exact_is_no_longer_than_any_list_and_its_bound_is_its_makespan(tmp_path):
    case = {key: CASE[key] for key in ("cluster", "jobs")}
    body = json.loads(run(tmp_path, case, "--policy", "exact", "--slot-s", "10", "--json").stdout)
    others = json.loads(run(tmp_path, case, "--policy", "sjf-bco", "--slot-s", "10", "--json").stdout)
    assert body["lower_bound_s"] == body["makespan_s"] <= others["makespan_s"]
    refused = run(tmp_path, case, "--policy", "exact").exception
    assert isinstance(refused, InputError)
    assert "continuous time" in str(refused)


def test_online_jobs_start_after_they_arrive(tmp_path):
    case = {"cluster": CASE["cluster"] | {"servers": [4]}, "jobs": dict(CASE["jobs"])}
    case["jobs"]["a"] = JOB | {"arrival_s": 30, "iterations": 10}
    case["jobs"]["b"] = JOB | {"arrival_s": 20}
    body = json.loads(run(tmp_path, case, "--policy", "online", "--json").stdout)
    starts = {name: entry["start_s"] for name, entry in body["jobs"].items()}
    assert starts["c"] == 0 < starts["b"] < starts["a"]
    assert body["mean_completion_s"] < sum(entry["end_s"] for entry in body["jobs"].values()) / 3
    shortest = run(tmp_path, case, "--policy", "online", "--order", "shortest", "--json").stdout
    starts = {name: entry["start_s"] for name, entry in json.loads(shortest)["jobs"].items()}
    assert starts["c"] == 0 < starts["a"] < starts["b"]
    assert isinstance(run(tmp_path, case, "--policy", "list").exception, InputError)
    assert isinstance(run(tmp_path, case, "--policy", "online", "--order", "best").exception, InputError)
    case["jobs"]["b"]["arrival_s"] = -1
    assert isinstance(run(tmp_path, case, "--policy", "online").exception, InputError)


def test_no_online_schedule_ends_before_the_last_arrival(tmp_path):
    case = {"cluster": CASE["cluster"], "jobs": {"a": JOB, "b": JOB | {"arrival_s": 1000}}}
    body = json.loads(run(tmp_path, case, "--policy", "online", "--json").stdout)
    assert body["lower_bound_s"] == pytest.approx(body["makespan_s"])
    assert body["makespan_s"] > 1000


def test_a_makespan_starts_at_the_first_arrival(tmp_path):
    bodies = []
    for first_s in (0, 500):
        arriving = {"a": JOB | {"arrival_s": first_s}, "b": JOB | {"arrival_s": first_s + 30}}
        case = {"cluster": CASE["cluster"] | {"servers": [4]}, "jobs": arriving}
        bodies.append(json.loads(run(tmp_path, case, "--policy", "online", "--json").stdout))
    for figure in ("makespan_s", "lower_bound_s", "mean_completion_s"):
        assert bodies[0][figure] == pytest.approx(bodies[1][figure])


def test_duty_cycles_contend_less_than_the_paper(tmp_path):
    paper = json.loads(run(tmp_path, CASE, "--json").stdout)["jobs"]
    computing = json.loads(run(tmp_path, CASE, "--duty-cycle", "--json").stdout)["jobs"]
    assert 1 <= computing["a"]["contention"] < paper["a"]["contention"]
    assert computing["c"] == paper["c"]
    assert isinstance(run(tmp_path, CASE, "--duty-cycle", "--literal").exception, InputError)


def test_policies_and_placements_that_are_missing(tmp_path):
    case = {key: CASE[key] for key in ("cluster", "jobs")}
    assert isinstance(run(tmp_path, case, "--policy", "best").exception, UnknownNameError)
    assert isinstance(run(tmp_path, case).exception, InputError)
    case["jobs"] = {"wide": dict(JOB, gpus=40)}
    assert isinstance(run(tmp_path, case, "--policy", "sjf-bco").exception, InfeasibleError)


def test_a_fabric_in_the_case(tmp_path):
    case = _with(["cluster", "fabric"], {"servers_per_leaf": 1, "oversubscription": 2})
    body = json.loads(run(tmp_path, case, "--json").stdout)["jobs"]
    assert body["a"]["contention"] == 4
    assert isinstance(run(tmp_path, _with(["cluster", "fabric"], {"rails": 0})).exception, InputError)


@pytest.mark.parametrize(("change", "code"), [({}, 0), ({"placement": {"a": {"0": 4}}}, 2), ({"jobs": 3}, 2)])
def test_on_the_command_line(tmp_path, capsys, change, code):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(CASE | change))
    ended, out, err = commands.run(capsys, "plan", "ring", path, "--json")
    assert ended == code
    if code:
        assert err.startswith("cotenant: ")
        assert out == ""
    else:
        assert set(json.loads(out)["jobs"]) == {"a", "b", "c"}


def test_a_gang_larger_than_the_cluster_exits_with_1(tmp_path, capsys):
    path = tmp_path / "case.json"
    path.write_text(json.dumps({"cluster": CASE["cluster"], "jobs": {"wide": dict(JOB, gpus=40)}}))
    commands.refused(capsys, "plan", "ring", path, "--policy", "sjf-bco", code=1)


def test_slots_need_a_policy(tmp_path, capsys):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(CASE))
    assert "--policy" in commands.refused(capsys, "plan", "ring", path, "--slot-s", "5")


@pytest.mark.parametrize("text", ["", "[1", "[" * 100_000, '"case"', "NaN", "null"])
def test_invalid_case_files(tmp_path, text):
    path = tmp_path / "case.json"
    path.write_text(text)
    assert isinstance(CliRunner().invoke(app, [str(path), "--json"]).exception, InputError)
    assert isinstance(CliRunner().invoke(app, [str(path), "--policy", "list"]).exception, InputError)
