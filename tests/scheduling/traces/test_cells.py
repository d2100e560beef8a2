"""Unusable rows of a CSV are reported, and the others are kept."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from profiling.errors import InputError
from scheduling.traces.columns import read_columns
from scheduling.traces.logged import Log, usable
from scheduling.traces.remarks import by_reason


def read(path: Path, rows: str, header: str = "submit_time,duration,gpu_num") -> Log:
    path.write_text(f"{header}\n{rows}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return usable(path, read_columns(path))


@pytest.mark.parametrize(
    ("row", "reason", "example"),
    [
        ("5,-60,1", "duration is below 1 s", "-60"),
        ("5,0.5,1", "duration is below 1 s", "0.5"),
        ("5,1e300,1", "duration is above ten years", "1e+300"),
        ("5,1e12,1", "duration is above ten years", "1000000000000"),
        ("5,NaN,1", "duration is empty", None),
        ("5,1h,1", "duration is not a number of seconds", "1h"),
        ("5,inf,1", "duration is not a number of seconds", "inf"),
        ("5,60,0", "gpu_num is not above 0", "0"),
        ("5,60,-2", "gpu_num is not above 0", "-2"),
        ("5,60,1.5", "gpu_num is not a whole number of GPUs", "1.5"),
        ("5,60,two", "gpu_num is not a number", "two"),
        ("-,60,1", "submit_time is not a number of seconds", "-"),
        (",60,1", "submit_time is empty", None),
        ("2024-05-01 10:00,60,1", "submit_time is not a number of seconds", "2024-05-01 10:00"),
    ],
)
def test_one_bad_cell_costs_its_row_only(tmp_path: Path, row: str, reason: str, example: str | None) -> None:
    log = read(tmp_path / "t.csv", f"0,60,1\n{row}\n30,60,2")
    assert [(job.submit_s, job.gpus) for job in log.jobs] == [(0.0, 1.0), (30.0, 2.0)]
    assert by_reason(log.remarks) == {"ignored_rows": {reason: 1}}
    assert log.remarks[0].examples == (() if example is None else (example,))


def test_time_stamps(tmp_path: Path) -> None:
    log = read(
        tmp_path / "t.csv",
        "2024-05-01 10:00,60,1\n2024-05-01T10:00:30.5Z,60,1\n01/05/2024 10:00,60,1\n17,60,1",
    )
    assert [job.submit_s - log.jobs[0].submit_s for job in log.jobs] == [0.0, 30.5]
    assert by_reason(log.remarks)["ignored_rows"] == {"submit_time is not in ISO 8601 like the others": 2}
    assert log.remarks[0].examples == ("01/05/2024 10:00", "17")


def test_other_date_formats_are_read_if_unambiguous(tmp_path: Path) -> None:
    log = read(tmp_path / "t.csv", "01/05/2024 10:00,60,1\n13/05/2024 10:00,60,1\nlater,60,1")
    assert log.jobs[1].submit_s - log.jobs[0].submit_s == 12 * 86400.0
    assert list(by_reason(log.remarks)["ignored_rows"]) == [
        "submit_time is not a timestamp in the same format as the others"
    ]
    log = read(tmp_path / "t.csv", "2024-05-01 11:00 AM,60,1\n2024-05-01 01:00 PM,60,1")
    assert log.jobs[1].submit_s - log.jobs[0].submit_s == 2 * 3600.0
    with pytest.raises(InputError, match=r"day or month first, such as '01/05/2024', '02/05/2024'"):
        read(tmp_path / "t.csv", "01/05/2024,60,1\n02/05/2024,60,1")
    with pytest.raises(InputError, match="neither seconds nor a timestamp"):
        read(tmp_path / "t.csv", "soon,60,1\nlater,60,1")


def test_a_log_without_a_usable_row_says_why(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"2 rows: duration is not.*'1h', '00:10:00'.*ISO 8601") as caught:
        read(tmp_path / "t.csv", "0,1h,1\n5,00:10:00,1\n9,,1")
    assert "1 row: duration is empty" in caught.value.message
    with pytest.raises(InputError, match="empty log"):
        read(tmp_path / "t.csv", "")


def test_times_of_two_formats_are_not_subtracted(tmp_path: Path) -> None:
    header = "job_name,inst_num,start_time,end_time,plan_gpu,user"
    with pytest.raises(InputError, match=r"start_time and end_time.*got seconds and timestamps"):
        read(tmp_path / "t.csv", "j,1,100,2024-05-01 10:00,100,u", header)


def test_gpu_fractions_are_rounded_up_and_counted(tmp_path: Path) -> None:
    header = "job_name,inst_num,start_time,end_time,plan_gpu,user"
    log = read(
        tmp_path / "t.csv", "j,1,100,400,25,u\nk,2,100,400,50,u\nl,1,100,,50,u\nm,1,100,100,50,u", header
    )
    assert [job.gpus for job in log.jobs] == [1.0, 1.0]
    assert by_reason(log.remarks) == {
        "ignored_rows": {"end_time is empty": 1, "end_time is less than 1 s after start_time": 1},
        "changed_rows": {"plan_gpu requests a share of a GPU and gets a whole one": 1},
    }


def test_optional_cells_that_are_not_numbers(tmp_path: Path) -> None:
    log = read(
        tmp_path / "t.csv",
        "0,60,2,,,,\n1,60,2,high,,,\n2,60,2,1,1.5,4,\n3,60,2,1,1,4,soon\n4,60,2,3,1,4,90",
        "submit_time,duration,gpu_num,priority,min_gpus,max_gpus,deadline",
    )
    assert [(job.submit_s, job.priority, job.min_gpus) for job in log.jobs] == [
        (0.0, 1.0, None),
        (4.0, 3.0, 1),
    ]
    assert set(by_reason(log.remarks)["ignored_rows"]) == {
        "priority is not a number",
        "min_gpus is not a whole number of GPUs",
        "deadline is not a number of seconds",
    }


def test_invalid_priorities_deadlines_and_ranges(tmp_path: Path) -> None:
    log = read(
        tmp_path / "t.csv",
        "0,60,2,,,,\n1,60,2,0,,,\n2,60,2,,4,,\n3,60,2,,,1,\n4,60,2,,0,,\n5,60,2,,,,0\n6,60,2,.5,1,4,90",
        "submit_time,duration,gpu_num,priority,min_gpus,max_gpus,deadline",
    )
    assert [job.submit_s for job in log.jobs] == [0.0, 6.0]
    assert by_reason(log.remarks)["ignored_rows"] == {
        "priority is not above 0": 1,
        "min_gpus is not from 1 to the GPUs of the job": 2,
        "max_gpus is below the GPUs of the job": 1,
        "deadline is not after the submission": 1,
    }


def test_invalid_batch_sizes(tmp_path: Path) -> None:
    log = read(
        tmp_path / "t.csv",
        "0,60,2,,,\n1,60,2,0,400,\n2,60,2,-8,,\n3,60,2,64,32,\n4,60,2,,400,\n5,60,2,64,256,0\n"
        "6,60,2,large,256,\n7,60,2,64,64,\n8,60,2,64,256,300",
        "submit_time,duration,gpu_num,batch_size,max_batch_size,noise_scale",
    )
    assert [(job.submit_s, job.batch_ratio) for job in log.jobs] == [(0.0, None), (7.0, None), (8.0, 4.0)]
    assert by_reason(log.remarks)["ignored_rows"] == {
        "batch_size is not above 0": 2,
        "max_batch_size is below the batch size of the job": 1,
        "max_batch_size is given without a batch size of the job": 1,
        "noise_scale is not above 0": 1,
        "batch_size is not a number": 1,
    }
    with pytest.raises(InputError, match="max_batch_size is given without a batch size"):
        read(tmp_path / "t.csv", "0,60,2,400", "submit_time,duration,gpu_num,max_batch_size")


def test_rows_that_end_with_a_comma_do_not_move_the_columns(tmp_path: Path) -> None:
    log = read(tmp_path / "t.csv", "0,60,1,\n30,90,2,")
    assert [(job.submit_s, job.duration_s, job.gpus) for job in log.jobs] == [
        (0.0, 60.0, 1.0),
        (30.0, 90.0, 2.0),
    ]
    with pytest.raises(InputError, match="not a trace"):
        read(tmp_path / "t.csv", "0,60,1,7\n30,90,2,7")


def test_time_stamps_that_nanoseconds_cannot_hold(tmp_path: Path) -> None:
    log = read(tmp_path / "t.csv", "2024-05-01 10:00,60,1\n9999-12-31T23:59:59-14:00,60,1")
    assert log.jobs[1].submit_s - log.jobs[0].submit_s == 251_687_793_599.0


def test_a_task_of_alibaba_with_a_field_missing_costs_its_job_only(tmp_path: Path) -> None:
    path = tmp_path / "pai_task_table.csv"
    path.write_text(
        "j1,worker,2,Terminated,100.0,400.0,600.0,29.3,50.0,MISC\n"
        "j2,worker,Terminated,90.0,390.0,600.0,29.3,50.0,MISC\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log = usable(path, read_columns(path))
    assert [(job.id, job.gpus, job.duration_s) for job in log.jobs] == [("j1", 1.0, 300.0)]
    assert sum(count.rows for count in log.remarks) == 1
