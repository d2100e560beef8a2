"""Every reader on a synthetic sample of its format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.errors import InputError
from scheduling.traces.columns import parse_mapping
from scheduling.traces.logged import weights_of_levels
from tests.scheduling.traces.reading import ignored, read, seconds

SACCT = """JobID|User|Submit|Start|End|Elapsed|State|Priority|ReqTRES|AllocTRES
7|ann|2024-05-01T10:00:00|2024-05-01T10:05:00|2024-05-02T11:05:00|1-01:00:00|COMPLETED|100|cpu=8,gres/gpu=2|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G
7.batch||2024-05-01T10:05:00|2024-05-01T10:05:00|2024-05-02T11:05:00|1-01:00:00|COMPLETED||cpu=8|cpu=8,gres/gpu=2,mem=64G
8_1|bob|2024-05-01T10:00:30|2024-05-01T10:05:00|2024-05-01T10:06:30|00:01:30|FAILED|400|cpu=8|cpu=8,gres/gpu:a100=1,gres/gpu:v100=2,node=1
9|bob|2024-05-01T10:01:00|Unknown|Unknown|00:00:00|PENDING|50|cpu=8|
10|eve|2024-05-01T10:02:00|2024-05-01T10:05:00|2024-05-01T10:06:30|00:01:30|COMPLETED|50|cpu=8|cpu=8,mem=4G
11|eve|2024-05-01T10:03:00|2024-05-01T10:05:00|Unknown|00:01:30|RUNNING|100|cpu=8,gres/gpu=1|cpu=8,gres/gpu=1
"""


@pytest.mark.parametrize("form", ["pipe", "trailing", "quoted", "unquoted"])
def test_sacct(tmp_path: Path, form: str) -> None:
    text = SACCT
    if form == "trailing":
        text = text.replace("\n", "|\n")
    elif form == "quoted":
        rows = [line.split("|") for line in text.splitlines()]
        text = "\n".join(",".join(f'"{field}"' for field in row) for row in rows)
    elif form == "unquoted":
        text = text.replace("|", ",")
    two, three = read(tmp_path / "sacct.txt", text)
    assert (two.id, two.user, two.gpus, two.submit_s, seconds(two)) == ("7", "ann", 2, 0.0, 90_000.0)
    assert (three.id, three.user, three.gpus, three.submit_s, seconds(three)) == ("8_1", "bob", 3, 30.0, 90.0)
    assert three.priority == pytest.approx(4 * two.priority)
    assert ignored(tmp_path / "sacct.txt") == {
        "ran for less than 1 s, or never": (1, ("PENDING",)),
        "requests no whole GPU": (1, ()),
        "has not ended": (1, ("RUNNING",)),
    }


def test_sacct_names_with_unicode_line_separators(tmp_path: Path) -> None:
    text = "JobID|JobName|Submit|Elapsed|AllocTRES\n7|a\u2028b\x85c|2024-05-01T10:00:00|01:00:00|gres/gpu=2\n"
    (job,) = read(tmp_path / "sacct.txt", text)
    assert (job.id, job.gpus, seconds(job)) == ("7", 2, 3600.0)


def test_sacct_with_seconds_since_1970(tmp_path: Path) -> None:
    text = (
        "JobID|Submit|Start|End|AllocTRES\n"
        "7|1714557600|1714557610|1714561210|gres/gpu=2\n"
        "8|1714557605|Unknown|Unknown|gres/gpu=1\n"
        "9|1714557630|1714557640|1714557700|gres/gpu=1\n"
    )
    first, second = read(tmp_path / "sacct.txt", text)
    assert (first.id, first.submit_s, seconds(first)) == ("7", 0.0, 3600.0)
    assert (second.id, second.submit_s, seconds(second)) == ("9", 30.0, 60.0)


def test_truncated_sacct(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="line 2"):
        read(tmp_path / "s.txt", "JobID|Submit|Elapsed|AllocTRES\n1|2024-05-01T10:00:00\n")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("JobID|Submit|Elapsed|ReqTRES", "expected AllocTRES, got JobID, Submit, Elapsed, ReqTRES"),
        ("JobIDRaw|Submit|Start|AllocTRES", "expected JobID, Elapsed, got"),
        ("       JobID              Submit    Elapsed AllocTRES ", "aligned by spaces: expected .*sacct -P"),
    ],
)
def test_sacct_without_its_columns(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path / "sacct.txt", f"{header}\n7|2024-05-01T10:00:00|01:00:00|gres/gpu=2,node=1\n")


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ("submit_time,duration,gpu_num,duration,user,job_id\n0,100,1,9000,ann,1\n", "duration"),
        ("JobID|Submit|Elapsed|AllocTRES|Elapsed\n7|0|00:10:00|gres/gpu=2|00:50:00\n", "Elapsed"),
    ],
)
def test_a_column_that_is_there_twice(tmp_path: Path, text: str, twice: str) -> None:
    with pytest.raises(InputError, match=f"log.txt has a column twice: .* got {twice}"):
        read(tmp_path / "log.txt", text)


def test_a_mapped_column_that_is_there_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a column twice: .* got runtime"):
        read(
            tmp_path / "log.csv",
            "time,runtime,gpu,runtime\n0,100,1,9000\n",
            {"submit": "time", "duration": "runtime", "gpus": "gpu"},
        )


def test_components_of_a_heterogeneous_job_of_slurm_are_one_gang(tmp_path: Path) -> None:
    text = (
        "JobID|Submit|Elapsed|State|Priority|AllocTRES\n"
        "7+0|2024-05-01T10:00:00|01:00:00|COMPLETED|10|gres/gpu=2\n"
        "7+1|2024-05-01T10:00:00|01:00:01|COMPLETED|30|gres/gpu:a100=4\n"
        "7+2|2024-05-01T10:00:00|02:00:00|COMPLETED|90|cpu=8\n"
        "7+0.0|2024-05-01T10:00:00|01:00:00|COMPLETED||gres/gpu=2\n"
        "8+0|2024-05-01T10:00:30|01:00:00|COMPLETED|10|gres/gpu=2\n"
        "8+1|2024-05-01T10:00:30|00:30:00|RUNNING|10|gres/gpu=2\n"
        "9+0|2024-05-01T10:01:00|00:01:00|NODE_FAIL|10|gres/gpu=1\n"
        "9+1|2024-05-01T10:01:00|00:01:00|NODE_FAIL|10|gres/gpu=1\n"
        "9+0|2024-05-01T10:01:00|00:02:00|COMPLETED|10|gres/gpu=1\n"
        "9+1|2024-05-01T10:01:00|00:02:00|COMPLETED|10|gres/gpu=1\n"
    )
    jobs = read(tmp_path / "sacct.txt", text)
    assert [(job.id, job.gpus, seconds(job)) for job in jobs] == [
        ("7", 6, 3601.0),
        ("9", 2, 60.0),
        ("9#2", 2, 120.0),
    ]
    assert jobs[0].priority == pytest.approx(3 * jobs[1].priority)
    assert ignored(tmp_path / "sacct.txt") == {"has not ended": (1, ("RUNNING",))}


def test_alibaba_without_a_header(tmp_path: Path) -> None:
    text = (
        "j1,worker,2,Terminated,100.0,400.0,600.0,29.3,50.0,MISC\n"
        "j1,ps,1,Terminated,90.0,390.0,600.0,29.3,,\n"
        "j2,tensorflow,4,Terminated,200.0,260.0,600.0,29.3,200.0,V100\n"
        "j3,tensorflow,4,Running,200.0,,600.0,29.3,200.0,V100\n"
        "j4,worker,1,Terminated,200.0,260.0,600.0,29.3,200.0,V100\n"
        "j4,ps,1,Running,200.0,,600.0,29.3,,V100\n"
    )
    first, second = read(tmp_path / "pai_task_table.csv", text)
    assert (first.id, first.gpus, first.submit_s, seconds(first)) == ("j1", 1, 0.0, 310.0)
    assert (second.id, second.gpus, second.submit_s, seconds(second)) == ("j2", 8, 110.0, 60.0)


@pytest.mark.parametrize("stamps", [False, True])
def test_alibaba_tasks_with_a_header(tmp_path: Path, stamps: bool) -> None:
    header = (
        "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type,user\n"
    )
    times = (
        ("2024-05-01 10:00:00", "2024-05-01 10:05:00", "2024-05-01 10:06:00")
        if stamps
        else (100.0, 400.0, 460.0)
    )
    rows = (
        f"j1,worker,2,Terminated,{times[0]},{times[1]},600.0,29.3,100.0,MISC,u1\n"
        f"j2,worker,1,Terminated,{times[0]},{times[1]},600.0,29.3,100.0,V100,u2\n"
        f"j1,evaluator,1,Terminated,{times[0]},{times[2]},600.0,29.3,100.0,MISC,u1\n"
        f"j3,worker,1,Terminated,{times[0]},{times[2]},600.0,29.3,100.0,MISC,u1\n"
        f"j3,ps,1,Running,{times[0]},,600.0,29.3,,MISC,u1\n"
    )
    first, second = read(tmp_path / "tasks.csv", header + rows)
    assert (first.id, first.gpus, seconds(first), first.user) == ("j1", 3, 360.0, "u1")
    assert (second.id, second.gpus, seconds(second), second.user) == ("j2", 1, 300.0, "u2")


def test_helios_and_acme(tmp_path: Path) -> None:
    helios = (
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
        "1,u1,vc1,8,32,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:05,2020-04-01 00:10:05,600,5\n"
        "2,u2,vc1,0,32,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:05,2020-04-01 00:10:05,600,5\n"
    )
    (job,) = read(tmp_path / "h.csv", helios)
    assert (job.id, job.user, job.gpus, seconds(job)) == ("1", "u1", 8, 600.0)
    acme = (
        "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,shared_mem_per_pod,type,state,submit_time,start_time,"
        "end_time,fail_time,stop_time,duration,queue,gpu_time\n"
        "dlc1,u3,4,32,480,1000,100,Pretrain,COMPLETED,2023-05-17 11:00:58+00:00,2023-05-17 11:01:08+00:00,"
        "2023-05-17 11:11:08+00:00,,,600,10,19200\n"
    )
    (job,) = read(tmp_path / "a.csv", acme)
    assert (job.id, job.user, job.gpus, seconds(job)) == ("dlc1", "u3", 32, 600.0)


def test_philly_json(tmp_path: Path) -> None:
    def attempt(start: str, end: str | None, *gpus: int) -> dict[str, object]:
        detail = [{"ip": f"m{n}", "gpus": [f"gpu{g}" for g in range(count)]} for n, count in enumerate(gpus)]
        return {"start_time": start, "end_time": end, "detail": detail}

    body = [
        {
            "status": "Pass",
            "vc": "6214e9",
            "jobid": "application_1",
            "user": "ce2",
            "submitted_time": "2017-10-09 07:00:00",
            "attempts": [
                attempt("2017-10-09 07:01:00", "2017-10-09 07:02:00", 8, 8),
                attempt("2017-10-09 07:03:00", "2017-10-09 07:05:00", 8, 8),
            ],
        },
        {
            "status": "Killed",
            "vc": "6214e9",
            "jobid": "application_2",
            "submitted_time": "None",
            "attempts": [],
        },
        {
            "status": "Killed",
            "vc": "6214e9",
            "jobid": "application_3",
            "submitted_time": "2017-10-09 07:00:00",
            "attempts": [
                attempt("2017-10-09 07:01:00", "2017-10-09 07:02:00", 8),
                attempt("2017-10-09 07:03:00", None, 8),
            ],
        },
        {
            "status": "Pass",
            "vc": "6214e9",
            "jobid": "application_4",
            "submitted_time": "2017-10-09 07:10:00",
            "attempts": [
                attempt("2017-10-09 07:11:00", None, 1),
                attempt("2017-10-09 07:12:00", "2017-10-09 07:13:00", 1),
            ],
        },
    ]
    job, retried = read(tmp_path / "cluster_job_log", json.dumps(body))
    assert (job.id, job.user, job.gpus, seconds(job)) == ("application_1", "6214e9", 16, 180.0)
    assert (retried.id, retried.gpus, seconds(retried)) == ("application_4", 1, 60.0)
    path = tmp_path / "cluster_job_log"
    assert ignored(path) == {"no submission time": (1, ()), "has not ended": (1, ("Killed",))}
    with pytest.raises(InputError, match="unrecognised JSON"):
        read(tmp_path / "other.json", "{}")


@pytest.mark.parametrize("milliseconds", ["1714550400000", "1e300"])
def test_submissions_in_milliseconds_are_left_out(tmp_path: Path, milliseconds: str) -> None:
    path = tmp_path / "late.csv"
    path.write_text(f"timestamp,duration,num_gpus\n1714550400,100,1\n{milliseconds},100,1\n")
    reason = "submission time is after the year 9999 if in seconds (is it in milliseconds?)"
    assert ignored(path) == {reason: (1, (f"{float(milliseconds):g}",))}


@pytest.mark.parametrize("days", ["3653000", "9" * 12, "9" * 400, "9" * 5000])
def test_durations_above_ten_years_are_left_out(tmp_path: Path, days: str) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT.replace("1-01:00:00", f"{days}-01:00:00"))
    assert ignored(path)["duration is above ten years"][0] == 1


def test_a_deadline_beyond_double_precision_is_none(tmp_path: Path) -> None:
    text = f"JobID|Submit|Elapsed|AllocTRES|Deadline\n7|2024-05-01|01:00:00|gres/gpu=1|{'9' * 400}\n"
    (job,) = read(tmp_path / "sacct.txt", text)
    assert job.deadline_s is None


def test_a_faulty_line_of_sacct_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    header = "JobID,Submit,Elapsed,AllocTRES"
    for line in ("7,short", f"7,2024-05-01T10:00:00,01:00:00,gres/gpu=1,{'x' * 200_000}"):
        with pytest.raises(InputError, match="line 4: expected 4 fields"):
            read(tmp_path / "sacct.txt", f"{header}\n\n\n{line}\n")


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ("max_gpus\n0,100,1,1e300", "max_gpus is above 1e+09"),
        ("batch_size,max_batch_size\n0,100,1,1,1e308", "max_batch_size is above 1e+09 times the batch size of the job"),
        (
            "batch_size,max_batch_size\n0,100,1,1e-300,1e300",
            "max_batch_size is above 1e+09 times the batch size of the job",
        ),
    ],
)  # fmt: skip
def test_ranges_that_no_cluster_has_are_left_out(tmp_path: Path, columns: str, fault: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"timestamp,duration,num_gpus,{columns}\n0,100,1\n")
    assert list(ignored(path)) == [fault]


@pytest.mark.parametrize("scale", ["nan", "0", "-1", "inf", "many"])
def test_a_unit_of_gpus_is_a_number_above_0(scale: str) -> None:
    with pytest.raises(InputError, match="gpu_scale"):
        parse_mapping({"submit": "at", "duration": "took", "gpu_scale": scale})


def test_mapping_has_priority_deadline_and_range(tmp_path: Path) -> None:
    mapping = {
        "submit": "at", "duration": "took", "gpus": "cards", "id": "name", "priority": "weight", "deadline": "due",
        "min_gpus": "low", "max_gpus": "high",
    }  # fmt: skip
    text = (
        "name,at,took,cards,weight,due,low,high\n"
        "x,2024-05-01 10:00,60,2,3,2024-05-01 10:10,1,8\n"
        "y,2024-05-01 10:00,60,1,,,,\n"
    )
    x, y = read(tmp_path / "t.csv", text, mapping)
    assert (x.id, x.priority, x.deadline_s, x.min_gpus, x.max_gpus) == ("x", 3.0, 600.0, 1, 8)
    assert (y.id, y.priority, y.deadline_s, y.min_gpus, y.max_gpus) == ("y", 1.0, None, None, None)
    (z,) = read(tmp_path / "n.csv", "at,took,cards,due\n5,60,2,90\n", {
        "submit": "at", "duration": "took", "gpus": "cards", "deadline": "due",
    })  # fmt: skip
    assert z.deadline_s == 90.0
    with pytest.raises(InputError, match="no column for deadline"):
        read(tmp_path / "t.csv", text, {**mapping, "deadline": "nope"})
    (only,) = read(tmp_path / "t.csv", text.replace(",1,8", ",4,8"), mapping)
    assert only.id == "y"


def test_a_mapped_start_keeps_the_wait_out_of_the_duration(tmp_path: Path) -> None:
    text = "submitted,started,ended,n\n0,600,660,1\n10,,700,1\n20,650,650,1\n"
    mapping = {"submit": "submitted", "end": "ended", "gpus": "n"}
    assert [seconds(job) for job in read(tmp_path / "log.csv", text, mapping)] == [660.0, 690.0, 630.0]
    mapping["start"] = "started"
    (job,) = read(tmp_path / "log.csv", text, mapping)
    assert (job.submit_s, seconds(job)) == (0.0, 60.0)
    with pytest.raises(InputError, match="start with end, or duration"):
        parse_mapping({"submit": "submitted", "start": "started", "duration": "n"})


def test_weights_of_priority_levels() -> None:
    assert weights_of_levels([10, 20, 40]) == [0.5, 1.0, 2.0]
    assert weights_of_levels([0, -5, 1000]) == [2.0, 1.0, 3.0]
    assert weights_of_levels([1, 1, 10**9]) == [1.0, 1.0, 16.0]
    assert weights_of_levels([]) == []


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "List", "items": [{"kind": "Pod", "metadata": None}]},
        {"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": None}}]},
        [{"attempts": []}, 5],
        [{"attempts": [{"detail": [None]}]}],
    ],
)
def test_json_with_a_malformed_entry_is_one_line(tmp_path: Path, body: object) -> None:
    with pytest.raises(InputError, match="does not match its format"):
        read(tmp_path / "log.json", json.dumps(body))


@pytest.mark.parametrize("body", ["[" * 100_000, '{"kind": "List", "items": [' + "9" * 5000 + "]}"])
def test_json_that_python_cannot_read_is_one_line(tmp_path: Path, body: str) -> None:
    with pytest.raises(InputError, match=r"log\.json is not JSON"):
        read(tmp_path / "log.json", body)


def test_empty_ids_and_users_of_a_csv_stay_empty(tmp_path: Path) -> None:
    header, row = "job_id,user,submit_time,duration,gpu_num\n", "{},{},{},60,1\n"
    cells = [("41", "1000"), ("", "1001"), ("43", "")]
    text = header + "".join(row.format(job, user, k) for k, (job, user) in enumerate(cells))
    jobs = read(tmp_path / "log.csv", text)
    assert [(job.id, job.user) for job in jobs] == [("41", "1000"), ("job-1", "1001"), ("43", "")]


def test_repeated_ids_are_told_apart(tmp_path: Path) -> None:
    ids = ["a", "b", "a", "", "job-3", "a#2", "a", ""]
    text = "job_id,user,submit_time,duration,gpu_num\n" + "".join(
        f"{name},u,{k},60,1\n" for k, name in enumerate(ids)
    )
    names = [job.id for job in read(tmp_path / "log.csv", text)]
    assert names == ["a", "b", "a#3", "job-3#2", "job-3", "a#2", "a#4", "job-7"]


def test_jobs_that_never_ran_do_not_change_the_weights_of_others(tmp_path: Path) -> None:
    header = "JobID|Submit|Elapsed|State|Priority|AllocTRES\n"
    ran = [f"{k}|2024-05-01T10:00:0{k}|00:10:00|COMPLETED|{100 * k}|gres/gpu=1\n" for k in (1, 2, 4)]
    held = "9|2024-05-01T10:00:09|00:00:00|CANCELLED|0|\n"
    weights = [
        [job.priority for job in read(tmp_path / "sacct.txt", header + "".join(rows))]
        for rows in (ran, [*ran, held])
    ]
    assert weights[1] == weights[0] == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("state", ["RESIZING", "SIGNALING", "R", None])
def test_jobs_of_sacct_without_an_end_still_run(tmp_path: Path, state: str | None) -> None:
    names = ["JobID", "Submit", "Start", "End", "Elapsed", *(["State"] if state else []), "AllocTRES"]
    rows = [
        ["1", "2024-05-01T10:00:00", "2024-05-01T10:00:00", "2024-05-01T11:00:00", "01:00:00", "COMPLETED"],
        ["2", "2024-05-01T10:00:00", "2024-05-01T10:00:00", "Unknown", "00:30:00", state or ""],
        ["3", "2024-05-01T10:00:00", "2024-05-01T10:00:00", "2024-05-01T10:30:00", "00:30:00", "REQUEUED"],
    ]
    kept = 3 if state else 2
    lines = ["|".join(names)] + ["|".join([*r[: 6 if state else 5], "gres/gpu=1"]) for r in rows[:kept]]
    assert [job.id for job in read(tmp_path / "log.txt", "\n".join(lines) + "\n")] == ["1"]
    assert ignored(tmp_path / "log.txt")["has not ended"][0] == kept - 1


def test_a_task_without_a_jobs_name_is_a_job(tmp_path: Path) -> None:
    jobs = read(
        tmp_path / "pai.csv",
        "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
        "a,worker,2,Terminated,100,500,600,10,100,T4\n"
        ",worker,1,Terminated,200,900,600,10,100,T4\n"
        ",worker,1,Terminated,300,900,600,10,100,T4\n",
    )
    assert sorted(job.gpus for job in jobs) == [1, 1, 2]
