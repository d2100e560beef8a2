"""Records of runs as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from datasets.schema import KEYS
from datasets.user_files import check_file
from profiling.errors import InputError
from profiling.measure.request import RunRequest
from profiling.measure.settings import MeasureSettings
from profiling.measure.table_files import _KEYS, write_frames
from profiling.measure.tables import tables
from profiling.workload import Workload
from profiling.zoo.listing import get_model
from tests.profiling.campaign.support import record_of


def ran(*solo_step_s: float | None, kind: str = "colocation") -> dict[str, Any]:
    """A run of jobs that differ in batch size, by their step times alone; None: out of memory."""
    jobs = tuple(
        Workload("tests.profiling.measure.jobs:mlp", batch_size=k + 1) for k in range(len(solo_step_s))
    )
    record = record_of(RunRequest(kind, jobs, "cpu"), MeasureSettings())
    (member,) = record["members"]
    record["members"] = [
        member | {"workload": str(job), "batch_size": job.batch_size, "solo_step_time_s": step_s}
        | ({} if step_s else {"outcome": "out-of-memory"})
        for job, step_s in zip(jobs, solo_step_s, strict=True)
    ]  # fmt: skip
    return record


def test_solo_step_times_are_medians_over_sets_unless_a_job_ran_alone() -> None:
    sets = [ran(None, 0.2), ran(0.1, 0.4), ran(0.3, 0.6)]

    def solo(records: list[dict[str, Any]]) -> dict[int, float]:
        return tables(records, "mine")["solo"].set_index("batch_size")["step_time_s"].to_dict()

    assert solo(sets) == pytest.approx({1: 0.2, 2: 0.4})
    alone = ran(0.15, kind="solo")
    for records in ([alone, *sets], [*sets, alone], [*sets, alone, ran(None, kind="solo")]):
        assert solo(records) == pytest.approx({1: 0.15, 2: 0.4})


def test_a_disturbed_share_of_the_core_is_no_utilisation() -> None:
    def run(verdict: str, share: float) -> dict[str, Any]:
        record = ran(0.1, 0.2)
        for member in record["members"]:
            member |= {"throughput_ratio": 0.5, "step_time_s": 0.4, "solo_utilization_ratio": share}
            member |= {"solo_verdict": verdict, "verdict": verdict}
        return record | {"set": {"utilization_ratio": share}}

    disturbed = tables([run("disturbed", 0.2)], "mine")
    assert disturbed["solo"]["utilization_ratio"].isna().all()
    assert disturbed["colocation"]["set_utilization_ratio"].isna().all()
    assert (disturbed["measurements"]["solo_utilization_ratio"] == 0.2).all()
    both = tables([run("disturbed", 0.2), run("stable", 0.9)], "mine")
    assert (both["solo"]["utilization_ratio"] == 0.9).all()
    for made, flags in ((disturbed, [True]), (both, [False])):
        assert made["solo"]["disturbed"].unique().tolist() == flags
    assert both["colocation"]["disturbed"].tolist() == [True, True, False, False]


def test_a_set_of_which_one_member_was_disturbed_is_disturbed_as_a_whole(tmp_path: Path) -> None:
    record = ran(0.1, 0.2) | {"set": {"utilization_ratio": 0.9}}
    for member, job in zip(record["members"], ("resnet18-cifar", "dcgan-64"), strict=True):
        member |= {"workload": job, "architecture": job, "batch_size": get_model(job).batch_size}
        # A median of ratios that no medians of step times give.
        member |= {"throughput_ratio": 0.5, "step_time_s": 8 * member["solo_step_time_s"], "verdict": "noisy"}
    record["members"][1]["verdict"] = "disturbed"
    made = tables([record], "mine")["colocation"]
    assert made["disturbed"].tolist() == [True, True]
    made.to_parquet(tmp_path / "colocation.parquet")
    assert check_file(tmp_path / "colocation.parquet")[2] == []
    made.assign(disturbed=False).to_parquet(tmp_path / "colocation.parquet")
    assert check_file(tmp_path / "colocation.parquet")[2] != []


def test_a_disturbed_run_with_a_frozen_prefix_is_flagged() -> None:
    from datasets.tables import validate_table

    def run(verdict: str, prefix: int) -> dict[str, Any]:
        job = Workload("resnet18-cifar", frozen_prefix=prefix)
        record = record_of(RunRequest("freezing", (job,), "cpu"), MeasureSettings())
        record["members"][0] |= {"solo_step_time_s": 0.1, "solo_verdict": verdict, "total_layers": 41}
        return record

    made = tables([run("disturbed", 20), run("stable", 30)], "mine")["freezing"]
    assert validate_table("freezing", made)["disturbed"].tolist() == [True, False]


def test_operator_times_of_a_model_in_two_precisions_are_two_graphs() -> None:
    from datasets.tables import validate_table

    def timed(precision: str) -> dict[str, Any]:
        job = Workload("ppo-lunarlander", batch_size=64, precision=precision)
        record = record_of(RunRequest("operators", (job,), "cpu"), MeasureSettings())
        node = {
            "node": "a",
            "operator": "linear(a)",
            "inputs": None,
            "activation_bytes": 4,
            "parameter_bytes": 4,
        }
        return record | {"nodes": [node | {"forward_time_s": 0.1, "backward_time_s": 0.2}]}

    made = tables([timed("fp32"), timed("amp")], "mine")["graphs"]
    assert len(validate_table("graphs", made)) == 2


def test_rows_of_other_campaigns_in_the_folder_stay(tmp_path: Path) -> None:
    from datasets.tables import make_table, read_table, write_table

    def measured(*prefixes: int) -> dict[str, Any]:
        records = []
        for prefix in prefixes:
            job = Workload("resnet18-cifar", batch_size=8, frozen_prefix=prefix)
            record = record_of(RunRequest("solo", (job,), "cpu"), MeasureSettings())
            records.append(record)
        return tables(records, "mine")

    def campaigns() -> list[tuple[str, str]]:
        solo = read_table(tmp_path, "solo")
        return sorted(zip(solo["source"], solo["campaign"], strict=True))

    published = {
        "device": "v100",
        "workload": "resnet18-cifar:batch_size=8",
        "architecture": "resnet18-cifar",
        "batch_size": 8,
        "precision": "fp32",
        "step_time_s": 0.01,
        "gpus": 1,
        "source": "theirs",
        "campaign": "mine",
        "licence": "CC0-1.0",
        "origin": "measured",
    }
    write_table(tmp_path, "solo", make_table("solo", [published]))
    theirs, own = ("theirs", "mine"), ("cotenant", "mine")
    with pytest.warns(UserWarning, match="keeps its rows of other campaigns: mine"):
        assert write_frames(tmp_path, measured(0, 3), "mine")["solo"] == 2
    assert campaigns() == [own, own, theirs]
    with pytest.warns(UserWarning, match="keeps"), pytest.warns(UserWarning, match="had 1 other run"):
        write_frames(tmp_path, measured(0), "mine")
    assert campaigns() == [own, theirs]

    solo = read_table(tmp_path, "solo").astype({"device": "category", "campaign": "category"})
    solo.to_parquet(tmp_path / "solo.parquet", index=False)
    freezing = measured(0)["solo"].assign(frozen_prefix=1, total_layers=20)
    freezing[["source", "campaign", "frozen_prefix"]].to_parquet(tmp_path / "freezing.parquet", index=False)
    with pytest.warns(UserWarning, match="keeps"):
        write_frames(tmp_path, measured(0), "mine")
    assert campaigns() == [own, theirs]
    assert not (tmp_path / "freezing.parquet").exists()  # had rows of the earlier export only

    solo = read_table(tmp_path, "solo")
    solo.assign(batch_size=solo["batch_size"].astype(str)).to_parquet(tmp_path / "solo.parquet")
    with pytest.raises(InputError, match="have other types"):
        write_frames(tmp_path, measured(0), "mine")
    assert campaigns() == [own, theirs]
    copied = read_table(tmp_path, "solo").assign(source="copy").query("device == 'cpu'")
    write_table(tmp_path, "solo", copied)
    with pytest.raises(InputError, match=r"has 1 of these rows under another source.*got cpu/resnet18"):
        write_frames(tmp_path, measured(0), "mine")
    assert campaigns() == [("copy", "mine")]

    (tmp_path / "solo.parquet").write_text("not Parquet")
    with pytest.raises(InputError, match="is no table of measurements"):
        write_frames(tmp_path, measured(0), "mine")
    assert (tmp_path / "solo.parquet").read_text() == "not Parquet"


def test_keys_are_those_of_the_schema() -> None:
    """They are written twice, because the profiler does not import `datasets`. Measurements have no `repeat`."""
    assert {name: [c for c in KEYS[name] if c != "repeat"] for name in _KEYS} == _KEYS
