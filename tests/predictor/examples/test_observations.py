from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from predictor.examples.observations import (
    Observation,
    apart,
    default_store,
    keep,
    read_observations,
    report_of,
    set_ids_of,
    stored,
)
from predictor.examples.out_of_memory import OutOfMemory
from profiling.errors import ConflictError, InputError
from profiling.workload import ColocationSet, Workload

BETA = "beta:batch_size=32,step_time_s=0.03"
PAIR = ColocationSet("v100", (Workload("alpha", 32), Workload.parse(BETA)))

CSV = f"""device,sharing,jobs,job,step_time_s
v100,time-slice,alpha:batch_size=32; {BETA},alpha:batch_size=32,0.02
v100,,"gamma",,0.5
"""


def test_a_store_is_locked_where_it_is_by_whichever_link_it_is_named(tmp_path: Path) -> None:
    there, link = tmp_path / "there" / "store.json", tmp_path / "here" / "store.json"
    keep(there, [Observation(PAIR, 0, 0.02)])
    link.parent.mkdir()
    link.symlink_to(there)
    (there.parent / ".lock").unlink()
    keep(link, [Observation(PAIR, 0, 0.03)])
    assert len(stored(there)) == 2
    assert sorted(path.name for path in there.parent.iterdir()) == [".lock", "store.json"]


def test_files(tmp_path: Path) -> None:
    csv, js = tmp_path / "seen.csv", tmp_path / "seen.json"
    csv.write_text(CSV.replace(f"32; {BETA},", f'32; {BETA}",').replace("slice,alpha", 'slice,"alpha'))
    first, second = read_observations(csv)
    assert first == Observation(PAIR, 0, 0.02)
    assert second == Observation(ColocationSet("v100", (Workload("gamma"),)), 0, 0.5)
    for body in (
        [first.to_mapping()],
        {"items": [{**first.to_mapping(), "id": 7, "error_ratio": 0.1}]},
        {
            "observations": [
                {
                    "of": {"device": "v100", "jobs": ["alpha:batch_size=32", BETA]},
                    "member": 0,
                    "step_time_s": 0.02,
                }
            ]
        },
    ):
        js.write_text(json.dumps(body))
        assert read_observations(js) == [first]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("device,jobs,job,step_time_s\nv100,alpha,alpha,-1\n", "row 1"),
        ("device,jobs,job,step_time_s\nv100,alpha,alpha,0.1\nv100,alpha,beta,0.1\n", "row 2"),
        ("device,jobs,job\nv100,alpha,alpha\n", "step_time_s"),
        ("device,jobs,job,step_time_s\nv100,alpha;beta,,0.1\n", "job"),
        ("device,jobs,job,step_time_s\nv100,alpha:colour=red,,0.1\n", "colour"),
        ("device,jobs,job,step_time_s\n", "no observations"),
        ("device,jobs,step_time_s,utilisation_ratio\nv100,alpha,0.1,0.5\n", "such as utilization_ratio"),
        ("device;jobs;step_time_s\nv100;alpha;0.1\n", "row 1: unknown field"),
        ("device,device,jobs,step_time_s\nv100,k80,alpha,0.1\n", "a column twice: .* got device"),
        (
            "device,jobs,step_time_s\nv100,alpha,0.1\nv100,alpha:batch_size=1,precision=amp,0.1\n",
            "row 2 is longer than the header: expected 3 cells; quote a SPEC",
        ),
    ],
)
def test_bad_rows(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "seen.csv").write_text(text)
    with pytest.raises(InputError, match=word):
        read_observations(tmp_path / "seen.csv")


def test_spaces_in_a_header_and_commas_at_the_ends_of_lines_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("device, jobs, step_time_s,\nv100,alpha,0.1,\n")
    assert read_observations(tmp_path / "seen.csv") == [
        Observation(ColocationSet("v100", (Workload("alpha"),)), 0, 0.1)
    ]


@pytest.mark.parametrize("change", [{"utilisation_ratio": 0.5}, {"of": {"device": "v100", "share": "mps"}}])
def test_a_misspelt_field_is_not_ignored(tmp_path: Path, change: dict[str, object]) -> None:
    one = {"device": "v100", "jobs": ["alpha"], "step_time_s": 0.1}
    (tmp_path / "seen.json").write_text(json.dumps([one, {**one, **change}]))
    with pytest.raises(InputError, match="row 2: unknown field"):
        read_observations(tmp_path / "seen.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"jobs": "alpha"},
        {"jobs": [], "member": None},
        {"member": True},
        {"member": 0.5},
        {"step_time_s": True},
    ],
)
def test_values_of_the_wrong_type(changes: dict[str, object]) -> None:
    right = {"device": "v100", "jobs": ["alpha", "beta"], "member": 1, "step_time_s": 0.1}
    assert report_of(right).member == 1
    with pytest.raises(InputError, match="not an observation"):
        report_of(right | changes)


@pytest.mark.parametrize(
    ("job", "member"),
    [
        ("lstm-wikitext2", 0),
        ("lstm-wikitext2:batch_size=20", 0),
        ("resnet18-cifar:batch_size=64,precision=fp32", 1),
        ("ResNet-18:batch_size=64", 1),
        ("resnet18-cifar:batch_size=32", None),
    ],
)
def test_a_job_is_found_however_it_is_spelled(job: str, member: int | None) -> None:
    jobs = ["lstm-wikitext2:optimizer=sgd", "resnet18-cifar:batch_size=64"]
    values = {"device": "v100", "jobs": jobs, "job": job, "step_time_s": 0.02}
    if member is None:
        with pytest.raises(InputError, match="not in the set"):
            report_of(values)
    else:
        assert report_of(values).member == member


def test_sets_that_ran_out_of_memory(tmp_path: Path) -> None:
    rows = [
        "device,jobs,job,step_time_s,out_of_memory",
        "v100,alpha; beta,,,true",
        "v100,alpha,,0.1,false",
        "k80,alpha,,0.1,",
    ]
    (tmp_path / "seen.csv").write_text("\n".join(rows))
    ran_out, *others = read_observations(tmp_path / "seen.csv")
    assert ran_out == OutOfMemory(ColocationSet("v100", (Workload("alpha"), Workload("beta"))))
    assert apart([ran_out, *others]) == (others, [ran_out])
    assert report_of(ran_out.to_mapping()) == ran_out
    keep(tmp_path / "store.json", [ran_out, *others])
    assert stored(tmp_path / "store.json") == [ran_out, *others]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"step_time_s": 0.1}, "step_time_s of a set that ran out of memory"),
        ({"memory_bytes": 1e9}, "memory_bytes of a set that ran out of memory"),
        ({"out_of_memory": "yes"}, "true or false"),
        ({"jobs": ["alpha", "beta"], "sharing": "mig"}, "such as a100:mig=1g"),
    ],
)
def test_bad_reports_of_memory(changes: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        report_of({"device": "a100", "jobs": ["alpha"], "out_of_memory": True, **changes})


def test_jobs_as_objects() -> None:
    jobs = [{"model": "alpha"}, {"model": "beta", "batch_size": 8}]
    body = {"device": "v100", "jobs": jobs, "job": jobs[1], "step_time_s": 0.1}
    assert report_of(body).workload == Workload("beta", 8)


@pytest.mark.parametrize("step_time_s", ["1e-30", "9e-7", "1.3e6", "1e30", "inf", "nan"])
def test_impossible_step_times(tmp_path: Path, step_time_s: str) -> None:
    """The same bounds apply in files, the store, SPECs and Python."""
    said = "1e-06 to 1.2e\\+06 seconds per step"
    with pytest.raises(InputError, match=said):
        Observation(PAIR, 0, float(step_time_s))
    with pytest.raises(InputError, match=said):
        Workload.parse(f"alpha:step_time_s={step_time_s}")
    (tmp_path / "seen.csv").write_text(f"device,jobs,step_time_s\nv100,alpha,1\nv100,alpha,{step_time_s}\n")
    with pytest.raises(InputError, match=f"row 2: step_time_s is out of range: expected {said}"):
        read_observations(tmp_path / "seen.csv")
    store = tmp_path / "feedback.json"
    keep(store, [Observation(PAIR, 1, 0.04), Observation(PAIR, 1, 0.05)])
    store.write_text(store.read_text().replace("0.04", f'"{step_time_s}"'))
    kept = store.read_text()
    with pytest.warns(
        UserWarning, match=r"feedback\.json: 1 of 2 observations .* observation 1: step_time_s"
    ):
        assert stored(store) == [Observation(PAIR, 1, 0.05)]
    assert store.read_text() == kept, "nothing is lost"


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file at"):
        read_observations(tmp_path / "missing.csv")
    for body in ("{}", "[1]", "[", '{"observations": []}'):
        (tmp_path / "seen.json").write_text(body)
        with pytest.raises(InputError):
            read_observations(tmp_path / "seen.json")
    # A quote that is never closed takes in the rest of the file, which is more than the reader takes for a cell.
    rows = "v100,alpha,0.1\n" * 10_000
    (tmp_path / "seen.csv").write_text(f'device,jobs,step_time_s\nv100,"alpha,0.1\n{rows}')
    with pytest.raises(InputError, match=r"seen\.csv, line \d+: not CSV"):
        read_observations(tmp_path / "seen.csv")


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    store = tmp_path / "new" / "store.json"
    batches = [[Observation(PAIR, 0, 0.02 + 0.001 * number)] for number in range(12)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda batch: keep(store, batch), batches))
    assert sorted(o.step_time_s for o in stored(store)) == [batch[0].step_time_s for batch in batches]


def test_memory_and_utilisation_of_a_job_alone(tmp_path: Path) -> None:
    file = tmp_path / "alone.csv"
    file.write_text(
        "device,jobs,step_time_s,memory_bytes,utilization_ratio\nv100,gamma,0.5,2e9,0.4\nv100,gamma,0.5,,\n"
    )
    first, second = read_observations(file)
    assert (first.memory_bytes, first.utilization_ratio) == (2e9, 0.4)
    assert second.of_device == {}
    store = tmp_path / "store.json"
    keep(store, [first, second])
    assert stored(store) == [first, second]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"utilization_ratio": 40}, "ratio"),
        ({"memory_bytes": 2.5}, "bytes"),
        ({"memory_bytes": float("nan")}, "memory_bytes"),
        ({"jobs": ["gamma", "beta"], "job": "gamma", "memory_bytes": 2e9}, "jobs alone only"),
    ],
)
def test_impossible_memory_and_utilisation(values: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        report_of({"device": "v100", "jobs": ["gamma"], "step_time_s": 0.5, **values})


def test_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, observation = tmp_path / "deep" / "feedback.json", Observation(PAIR, 1, 0.04)
    assert stored(store) == []
    keep(store, [observation])
    assert stored(store) == [observation]
    keep(store, [observation, observation])
    assert stored(store) == [observation] * 3
    with pytest.raises(ConflictError, match="already recorded"):
        keep(store, [observation])
    assert len(stored(store)) == 3
    for body in ("[]", '{"format": "cotenant-feedback", "version": 2}', "{"):
        store.write_text(body)
        with pytest.raises(InputError):
            stored(store)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_store() == tmp_path / "cotenant" / "feedback.json"


def test_earlier_versions_spellings_of_training_sets_are_recognised() -> None:
    full = ColocationSet("v100", (Workload.parse("resnet18-cifar:batch_size=128"),))
    assert set_ids_of(full) == {
        "feedback/v100/time-slice/resnet18-cifar",
        "feedback/v100/time-slice/resnet18-cifar:batch_size=128",
    }
