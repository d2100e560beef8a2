from __future__ import annotations

from pathlib import Path

import pytest

from profiling.errors import InputError
from profiling.workload import Workload
from scheduling.clusters import load_cluster
from scheduling.traces.columns import parse_mapping
from scheduling.traces.mix import Mix
from scheduling.traces.synthetic import synthetic
from tests.scheduling.traces.reading import read_log
from tests.shared import shared_data

MIX = Mix.even((Workload("a"), Workload("b")), lambda w: 0.5 if w.model == "a" else 2.0)


def test_philly() -> None:
    jobs = read_log(shared_data("traces", "philly.csv"), MIX, seed=3, limit=500)
    assert len(jobs) == 500
    assert jobs[0].submit_s == 0.0
    assert [j.submit_s for j in jobs] == sorted(j.submit_s for j in jobs)
    assert {j.workload.model for j in jobs} == {"a", "b"}
    again = read_log(shared_data("traces", "philly.csv"), MIX, seed=3, limit=500)
    assert jobs == again


def test_iterations_are_duration_over_step_time(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "timestamp,duration,num_gpus,cluster\n2020-01-01 00:00:10,100,2,x\n2020-01-01 00:00:00,50,1,y\n"
    )
    jobs = read_log(tmp_path / "t.csv", MIX)
    assert [(j.submit_s, j.gpus, j.user) for j in jobs] == [(0.0, 1, "y"), (10.0, 2, "x")]
    for job, duration in zip(jobs, (50, 100), strict=True):
        assert job.iterations * MIX.step_time_s(job.workload) == pytest.approx(duration)


def test_alibaba_and_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "job_name,inst_num,start_time,end_time,plan_gpu,user\nj,2,100,400,50,u\nk,1,50,,100,u\nl,1,60,90,,u\n"
    )
    (job,) = read_log(tmp_path / "a.csv", MIX)
    assert (job.gpus, job.iterations * MIX.step_time_s(job.workload)) == (1, pytest.approx(300))
    (tmp_path / "m.csv").write_text("when,took,cards\n5,10,4\n")
    with pytest.raises(InputError, match="columns"):
        read_log(tmp_path / "m.csv", MIX)
    columns = parse_mapping({"submit": "when", "duration": "took", "gpus": "cards"})
    assert read_log(tmp_path / "m.csv", MIX, columns=columns)[0].gpus == 4
    with pytest.raises(InputError):
        parse_mapping({"duration": "x"})


def test_synthetic() -> None:
    jobs = synthetic("rate=60,jobs=200,gangs=0.5", MIX, 1)
    assert jobs == synthetic("rate=60,jobs=200,gangs=0.5", MIX, 1)
    assert jobs != synthetic("rate=60,jobs=200,gangs=0.5", MIX, 2)
    assert jobs[-1].submit_s == pytest.approx(200 * 60, rel=0.3)
    assert {j.gpus for j in jobs} == {1, 2, 4, 8}
    for bad in ("speed=3", "rate=x", "rate=0", "gangs=2", "jobs=1.5", "jobs=nan", "jobs=1,jobs=2"):
        with pytest.raises(InputError):
            synthetic(bad, MIX)


def test_clusters() -> None:
    philly = list(load_cluster("philly-2000").gpus())
    assert len(philly) == 2000
    assert len({g.device for _, g in philly}) == 3
    assert len(list(load_cluster("sia-64").gpus())) == 64
    assert len(list(load_cluster("sia-64-homogeneous").gpus())) == 64
    with pytest.raises(InputError, match="small-mixed"):
        load_cluster("nowhere")


def test_batches_from_columns(tmp_path: Path) -> None:
    mix = Mix.even(tuple(Workload("a", batch_size=b) for b in (16, 32, 64)), lambda _: 0.5)
    (tmp_path / "t.csv").write_text(
        "timestamp,duration,num_gpus,batch_size,max_batch_size,noise_scale\n0,50,2,100,400,300\n1,50,1,100,,\n2,50,1,100,400,\n"
    )
    first, second, third = read_log(tmp_path / "t.csv", mix, seed=2)
    own = first.workload.batch_size
    assert own is not None
    assert first.batches is not None
    assert third.batches is not None
    assert second.batches is None
    assert (first.batches.largest, first.batches.noise_scale) == (8 * own, pytest.approx(6 * own))
    assert first.batches.sizes == tuple(size for size in (16, 32, 64) if size <= 8 * own)
    with pytest.raises(InputError, match="batch_size"):
        parse_mapping({"submit": "timestamp", "duration": "duration", "max_batch_size": "max_batch_size"})


def test_batch_sizes_of_a_mix() -> None:
    measured = Mix.even(
        (Workload("a", batch_size=16), Workload("a", batch_size=64), Workload("b")), lambda _: 1.0
    )
    assert measured.batch_sizes(Workload("a", batch_size=16), 1000) == [16, 64]
    assert measured.batch_sizes(Workload("b"), 1000) == []
    assert Mix.zoo(lambda _: 1.0).batch_sizes(Workload("c", batch_size=20), 100) == [2, 5, 10, 20, 40, 80]
