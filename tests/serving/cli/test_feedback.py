from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.tables import read_table, write_table
from datasets.user_files import template
from predictor.examples.observations import Observation, set_id_of
from predictor.examples.observed_rows import keep_with_rows
from profiling.workload import ColocationSet, Workload
from tests.commands import printed, refused, run
from tests.serving.cli.checkpoint import folder

__all__ = ["folder"]
JOBS = ("alpha:batch_size=32,step_time_s=0.01", "beta:batch_size=32")

FAR_OFF = """[{"device": "v100", "jobs": ["alpha:step_time_s=0.01"], "step_time_s": 0.01},
    {"device": "v100", "jobs": ["alpha:step_time_s=0.01"], "step_time_s": 10}]"""
OTHER = '[{"device": "abacus", "jobs": ["alpha"], "job": "beta", "step_time_s": 1}]'


def test_sets_that_ran_out_of_memory(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, device = ("--model", folder / "model"), ("--device", "v100")
    jobs = [f"{job},memory_bytes=6e9" for job in ("alpha:batch_size=32", "beta:batch_size=32")]
    ask = ("predict", *model, *device, "--job", jobs[0], "--job", jobs[1], "--json")
    assert json.loads(printed(capsys, *ask))["fits"]
    lines = ["device,jobs,out_of_memory", f'v100,"{";".join(jobs)}",true']
    (tmp_path / "seen.csv").write_text("\n".join(lines) + "\n")
    store = tmp_path / "feedback.json"
    give = ("feedback", tmp_path / "seen.csv", *model, "--store", store, "--rows", tmp_path / "rows")
    result = json.loads(printed(capsys, *give, "--json"))
    assert (result["added"], result["drift"]["count"], result["corrections"]) == (1, 0, [])
    assert result["ran_out_of_memory"] == [
        {
            "device": "v100",
            "sharing": "time-slice",
            "jobs": [str(Workload.parse(job)) for job in jobs],
            "fits": False,
        }
    ]
    assert not (tmp_path / "rows").exists(), "nothing to train on"
    code, out, _ = run(capsys, *ask, "--feedback", store)
    assert (code, json.loads(out)["fits"]) == (1, False)
    lines[1] = lines[1].replace("6e9", "1e9")
    (tmp_path / "wrong.csv").write_text("\n".join(lines) + "\n")
    assert "row 1: out_of_memory is implausible" in refused(
        capsys, "feedback", tmp_path / "wrong.csv", *model, "--store", store
    )
    shown = printed(capsys, *give[:1], _step_time(tmp_path, jobs), *give[2:6])
    assert "ran out of memory on v100: does not fit" in " ".join(shown.split())


def _step_time(folder: Path, jobs: list[str]) -> Path:
    (folder / "more.csv").write_text(
        f'device,jobs,job,step_time_s\nv100,"{";".join(jobs)}","{jobs[0]}",0.02\n'
    )
    return folder / "more.csv"


def test_observations_correct_later_predictions(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--model", folder / "model")
    ask = ("predict", *model, "--device", "v100", "--job", JOBS[0], "--job", JOBS[1], "--json")
    before = json.loads(run(capsys, *ask)[1])["members"]
    seen = before[1]["step_time_s"]["value"] * 2
    rows = [f'v100,time-slice,"{";".join(JOBS)}",{JOBS[1]},{seen}'] * 5
    rows.append(f'v100,time-slice,"{";".join(JOBS)}","{JOBS[0]}",0.02')
    (tmp_path / "seen.csv").write_text("\n".join(["device,sharing,jobs,job,step_time_s", *rows]) + "\n")
    store = tmp_path / "feedback.json"
    give = ("feedback", tmp_path / "seen.csv", *model, "--store", store, "--rows", tmp_path / "rows")
    out = printed(capsys, *give, "--json")
    result = json.loads(out)
    assert (result["added"], result["drift"]["count"]) == (6, 6)
    assert result["drift"]["after"] < result["drift"]["before"]
    assert result["rows"] == {"colocation": 2, "solo": 1}
    assert read_table(tmp_path / "rows", "colocation").is_target.tolist() == [True, False]
    after = json.loads(run(capsys, *ask, "--feedback", store)[1])["members"]
    assert after[1]["step_time_s"]["value"] == pytest.approx(seen, rel=0.1)
    # So is a placement: the tenant is delayed for longer.
    (tmp_path / "cluster.yaml").write_text(
        f'nodes: [{{name: a, gpus: [{{id: "0", device: v100, tenants: [{{job: "{JOBS[1]}", iterations_left: 9000}}]}}]}}]'
    )
    job = ("--job", JOBS[0], "--iterations", "9000")
    place = ("place", *model, "--cluster", tmp_path / "cluster.yaml", *job)
    delays = []
    for options in ((), ("--feedback", store)):
        out = printed(capsys, *place, "--max-slowdown", "9", "--no-wait", *options, "--json")
        (delay_s,) = json.loads(out)["ranked"][0]["delays_s"].values()
        delays.append(delay_s)
    assert delays[1] > 1.2 * delays[0]
    pairs = ("matrix", *model, "--device", "v100", "--job", JOBS[0], "--job", JOBS[1], "--json")
    plain, told = (json.loads(printed(capsys, *pairs, *o)) for o in ((), ("--feedback", store)))
    assert told["slowdown"][1][0] == pytest.approx(after[1]["slowdown"]["value"])
    assert told["slowdown"][1][0] > 1.05 * plain["slowdown"][1][0]
    # The same file again changes nothing.
    assert "already recorded" in refused(capsys, *give)
    assert len(json.loads(store.read_text())["observations"]) == 6


def test_a_model_is_not_corrected_by_what_it_was_trained_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rule is the service's: observations of its sets that were made with another model."""
    old, trained, store = folder / "model", tmp_path / "trained", tmp_path / "feedback.json"
    shutil.copytree(old, trained)
    asked = ColocationSet("v100", tuple(map(Workload.parse, JOBS)))
    for name, change in (
        (
            "config.json",
            lambda body: {
                **body,
                "model_version": body["model_version"].replace("model", "next"),
                "digests": {},
            },
        ),
        ("manifest.json", lambda body: {**body, "set_ids": [*body["set_ids"], set_id_of(asked)]}),
    ):
        (trained / name).write_text(json.dumps(change(json.loads((trained / name).read_text()))))

    def give(model: Path, step_time_s: float) -> dict[str, Any]:
        body = [{"device": "v100", "jobs": list(JOBS), "job": JOBS[1], "step_time_s": step_time_s}]
        (tmp_path / "seen.json").write_text(json.dumps(body))
        told = ("feedback", tmp_path / "seen.json", "--model", model, "--store", store, "--json")
        result: dict[str, Any] = json.loads(run(capsys, *told)[1])
        return result

    def ask(model: Path, *more: str | Path) -> tuple[float, str]:
        jobs = [part for job in JOBS for part in ("--job", job)]
        _, out, err = run(capsys, "predict", "--model", model, "--device", "v100", *jobs, *more, "--json")
        return json.loads(out)["members"][1]["step_time_s"]["value"], err

    plain = ask(old)[0]
    assert give(old, 2 * plain)["drift"]["count"] == 1
    assert ask(old, "--feedback", store)[0] > 1.2 * plain
    told, err = ask(trained, "--feedback", store)
    assert told == plain
    assert "1 observation is not applied: next-" in err
    # What is observed with it from then on is new.
    result = give(trained, 3 * plain)
    assert [c["count"] for c in result["corrections"]] == [1]
    assert result["drift"]["count"] == 1
    assert ask(trained, "--feedback", store)[0] > 1.2 * plain


def test_rows_of_other_sources_are_kept(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Observations whose rows cannot be added are not stored either, so they can be sent again."""
    tables, store = tmp_path / "tables", tmp_path / "feedback.json"
    write_table(tables, "colocation", pd.read_csv(io.StringIO(template())))
    body = [{"device": "v100", "jobs": list(JOBS), "job": JOBS[0], "step_time_s": 0.02}]
    (tmp_path / "seen.json").write_text(json.dumps(body))
    places = ("--model", folder / "model", "--store", store, "--rows", tables)
    give = ("feedback", tmp_path / "seen.json", *places)
    (tables / "solo.parquet").write_text("damaged")
    assert run(capsys, *give)[0] == 2
    assert not store.exists()
    (tables / "solo.parquet").unlink()
    assert "2 rows of colocation" in printed(capsys, *give)
    assert read_table(tables, "colocation").source.tolist() == ["mine", "mine", "feedback", "feedback"]


def test_rows_are_of_all_that_two_commands_store_at_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of what another one stores after this one has read the store were lost; here in the store's own folder."""
    from predictor.learning import drift

    def at_once(*given: Any) -> Any:
        other = Observation(ColocationSet("a100", tuple(map(Workload.parse, JOBS))), 0, 0.02)
        keep_with_rows(tmp_path / "s.json", [other], tmp_path)
        return drift_of(*given)

    drift_of = drift.drift_of
    monkeypatch.setattr(drift, "drift_of", at_once)
    body = [{"device": "v100", "jobs": list(JOBS), "job": JOBS[0], "step_time_s": 0.02}]
    (tmp_path / "seen.json").write_text(json.dumps(body))
    places = ("--model", folder / "model", "--store", tmp_path / "s.json", "--rows", tmp_path)
    printed(capsys, "feedback", tmp_path / "seen.json", *places)
    assert set(read_table(tmp_path, "colocation").device) == {"a100", "v100"}


def test_missing_rows_are_explained(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = [{"device": "v100", "jobs": ["alpha", "beta"], "job": "alpha", "step_time_s": 0.02}]
    (tmp_path / "seen.json").write_text(json.dumps(body))
    places = ("--store", tmp_path / "feedback.json", "--rows", tmp_path / "rows")
    ended, out, err = run(capsys, "feedback", tmp_path / "seen.json", "--model", folder / "model", *places)
    assert (ended, "no rows of 1 of 1 observed sets" in err, "rows of" in out) == (0, True, False)
    assert not (tmp_path / "rows").exists()


def test_table(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = [{"device": "v100", "jobs": ["gamma"], "step_time_s": 0.1}]
    (tmp_path / "seen.json").write_text(json.dumps(body))
    places = ("--model", folder / "model", "--store", tmp_path / "s.json")
    assert "1 added, 1 in" in printed(capsys, "feedback", tmp_path / "seen.json", *places)


def test_bad_input_stores_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ("--model", folder / "model", "--store", tmp_path / "s.json")
    for body in ('[{"device": "abacus", "jobs": ["gamma"], "step_time_s": 1}]', OTHER, FAR_OFF, "[", "[{}]"):
        (tmp_path / "seen.json").write_text(body)
        err = refused(capsys, "feedback", tmp_path / "seen.json", *places)
        assert err.startswith("cotenant: ")
        assert ("job is not in the set" in err) == (body == OTHER)
        assert ("row 2: step_time_s is implausible" in err) == (body == FAR_OFF)
        assert not (tmp_path / "s.json").exists()


def test_memory_counts_if_the_spec_states_the_step_time(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then only the memory can be learned."""
    body = [{"device": "v100", "jobs": [JOBS[0]], "step_time_s": 0.01, "memory_bytes": 3e9}]
    (tmp_path / "seen.json").write_text(json.dumps(body))
    give = ("feedback", tmp_path / "seen.json", "--model", folder / "model", "--store", tmp_path / "s.json")
    out = printed(capsys, *give)
    assert "1 added, 1 in" in out
    assert "typically off" not in out
    assert re.search(r"v100 +alpha +- +1 +2\.\d\d GiB", out)
    ask = ("predict", "--model", folder / "model", "--device", "v100", "--job", JOBS[0])
    out = printed(capsys, *ask, "--feedback", tmp_path / "s.json")
    assert "alpha: its memory (observed once) alone on v100 replaced the prediction" in " ".join(out.split())
