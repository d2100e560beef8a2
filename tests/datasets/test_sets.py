"""Tables of sets with the members' solo runs, and which rows may train a redistributable model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from datasets.sets import read_sets
from datasets.sources import SOURCES, check_may_learn, withheld
from datasets.tables import make_table, write_table
from profiling.capture import graph_for, register_graph
from profiling.capture.naming import captured_from
from profiling.errors import InputError
from profiling.workload import Workload
from tests.datasets.test_tables import example
from tests.profiling.capture.test_local import here  # noqa: F401

A, B = "resnet18-cifar:batch_size=64", "lstm-wikitext2:batch_size=20"


def pair(set_id: str, first_s: float, second_s: float | None) -> list[dict[str, Any]]:
    return [
        example("colocation", set_id=set_id, member=0, workload=A, solo_step_time_s=first_s),
        example("colocation", set_id=set_id, member=1, workload=B, solo_step_time_s=second_s),
    ]


def test_solo_times_stored_with_sets_are_used(tmp_path: Path) -> None:
    rows = [*pair("a", 0.030, None), *pair("b", 0.032, None), *pair("c", 0.05, None)]
    write_table(tmp_path, "colocation", make_table("colocation", rows))
    colocation, solo = read_sets(tmp_path)
    assert len(colocation) == 6
    assert solo["workload"].tolist() == [A]
    assert solo["step_time_s"].tolist() == [0.032]
    assert (solo["gpus"].tolist(), solo["memory_bytes"].isna().tolist()) == ([1], [True])


def test_disturbed_runs_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    rows = [*pair("a", 0.030, 0.02), *(row | {"disturbed": True} for row in pair("b", 0.05, None))]
    write_table(tmp_path, "colocation", make_table("colocation", rows))
    write_table(
        tmp_path, "solo", make_table("solo", [example("solo", workload=A, step_time_s=0.1, disturbed=True)])
    )
    with pytest.warns(UserWarning, match="which other processes disturbed") as told:
        colocation, solo = read_sets(tmp_path)
    assert [str(warning.message).partition(",")[0] for warning in told] == [
        "left out: 1 of 2 sets", "left out: 1 of 1 solo runs",
    ]  # fmt: skip
    assert set(colocation["set_id"]) == {"a"}
    assert solo.set_index("workload")["step_time_s"].to_dict() == {A: 0.03, B: 0.02}
    colocation, solo = read_sets(tmp_path, disturbed=True)
    assert len(colocation) == 4
    assert solo.set_index("workload")["step_time_s"].to_dict() == {A: 0.1, B: 0.02}


def test_repeats_of_a_solo_run_count_by_their_median_in_any_order(tmp_path: Path) -> None:
    rows = make_table("colocation", [*pair("b", 0.03, 0.02), *pair("a", 0.03, 0.02)])
    repeats = [
        example("solo", workload=A, step_time_s=step, memory_bytes=memory, samples_per_s=None, repeat=number)
        for number, step, memory in ((1, 0.09, 2e9), (2, 0.031, None), (3, 0.030, 4e9))
    ]
    runs = make_table("solo", [*repeats, example("solo", workload=B, samples_per_s=None, step_time_s=0.02)])
    read = []
    for order in (slice(None), slice(None, None, -1)):
        write_table(tmp_path, "colocation", rows[order])
        write_table(tmp_path, "solo", runs[order])
        read.append(read_sets(tmp_path))
    (colocation, solo), (other_colocation, other_solo) = read
    assert solo.set_index("workload").step_time_s.to_dict() == {A: 0.031, B: 0.02}
    assert solo.set_index("workload").memory_bytes[A] == 3e9
    for one, other, key in (
        (colocation, other_colocation, ["set_id", "member"]),
        (solo, other_solo, ["workload"]),
    ):
        one, other = (
            table.drop(columns="repeat", errors="ignore").sort_values(key) for table in (one, other)
        )
        pd.testing.assert_frame_equal(one.reset_index(drop=True), other.reset_index(drop=True))


def test_solo_runs_take_precedence_and_other_campaigns_are_ignored(tmp_path: Path) -> None:
    write_table(tmp_path, "colocation", make_table("colocation", pair("a", 0.03, 0.02)))
    runs = [
        example("solo", workload=A, step_time_s=0.029),
        example("solo", workload=A, step_time_s=0.5, campaign="elsewhere"),
    ]
    write_table(tmp_path, "solo", make_table("solo", runs))
    _, solo = read_sets(tmp_path)
    assert dict(zip(solo["workload"], solo["step_time_s"], strict=True)) == {A: 0.029, B: 0.02}


def test_solo_runs_without_a_step_time_on_one_gpu_get_that_of_the_members(tmp_path: Path) -> None:
    write_table(tmp_path, "colocation", make_table("colocation", pair("a", 0.03, 0.02)))
    runs = [
        example("solo", workload=A, step_time_s=None, samples_per_s=None, memory_bytes=3e9),
        example("solo", workload=B, step_time_s=0.5, gpus=2),
    ]
    write_table(tmp_path, "solo", make_table("solo", runs))
    _, solo = read_sets(tmp_path)
    assert solo[["workload", "gpus", "step_time_s"]].values.tolist() == [
        [A, 1, 0.03],
        [B, 2, 0.5],
        [B, 1, 0.02],
    ]
    assert solo["memory_bytes"].iloc[0] == 3e9


def test_runs_of_jobs_without_a_graph_are_left_out(tmp_path: Path) -> None:
    code = "my_module:factory:batch_size=8,data_on_device=true"
    graph = f"graph:{'a' * 64}:batch_size=8"
    mixed = pair("b", 0.03, 0.02)
    mixed[1] |= {"workload": code}
    own = pair("c", 0.03, 0.02)
    own[1] |= {"workload": graph}
    write_table(tmp_path, "colocation", make_table("colocation", [*pair("a", 0.03, 0.02), *mixed, *own]))
    write_table(tmp_path, "solo", make_table("solo", [example("solo", workload=code)]))
    with pytest.warns(UserWarning, match=r"left out for lack of a graph: my_module:factory \(sets: 1 of 3\)"):
        colocation, solo = read_sets(tmp_path)
    assert set(colocation["set_id"]) == {"a", "c"}
    assert set(solo["workload"]) == {A, B, graph}


def test_a_folder_without_sets(tmp_path: Path) -> None:
    write_table(tmp_path, "solo", make_table("solo", [example("solo")]))
    with pytest.raises(InputError, match="colocation"):
        read_sets(tmp_path)


def test_sources_that_a_shipped_model_may_not_learn_from() -> None:
    assert [s.name for s in withheld(["mine", "gavel", "lucid", "gpumemnet", "lucid"])] == [
        "gpumemnet",
        "lucid",
    ]
    check_may_learn(["mine", "cotenant", *(s.name for s in SOURCES.values() if s.may_ship)])
    check_may_learn(["lucid"], own_use=True)
    with pytest.raises(InputError, match=r"lucid \(LicenseRef-S-Lab-1.0.*--own-use"):
        check_may_learn(["gavel", "lucid"])


def test_a_job_has_one_architecture_in_all_tables(tmp_path: Path) -> None:
    mine, other, alone = "graph:01", "graph:02", "graph:03"
    rows = [
        example("colocation", set_id="a", member=0, workload=mine, architecture="mlp", batch_size=4),
        example("colocation", set_id="a", member=1, workload=A),
        example("colocation", set_id="b", member=0, workload=mine, architecture=mine, batch_size=4),
        example("colocation", set_id="b", member=1, workload=other, architecture=other, batch_size=8),
    ]
    write_table(tmp_path, "colocation", make_table("colocation", rows))
    runs = [
        example("solo", workload=job, architecture=name, batch_size=4, samples_per_s=None)
        for job, name in ((mine, "nets:mlp"), (other, "nets:mlp"), (alone, alone))
    ]
    write_table(tmp_path, "solo", make_table("solo", runs))
    colocation, solo = read_sets(tmp_path)
    assert colocation["architecture"].tolist() == ["mlp", "resnet18-cifar", "mlp", "mlp"]
    names = dict(zip(solo["workload"], solo["architecture"], strict=True))
    assert [names[job] for job in (mine, other, alone)] == ["mlp", "mlp", alone]


@pytest.mark.usefixtures("here")
def test_graphs_without_a_name_are_those_of_the_model_that_was_captured(tmp_path: Path) -> None:
    model = "own_factory_of_test:factory"
    eight, sixteen, cell = (
        register_graph(graph_for(Workload(name, batch_size=size), local=True))
        for name, size in ((model, 8), (model, 16), ("lstm-wikitext2", 10))
    )
    rows = [
        example("colocation", set_id=set_id, member=member, workload=job, architecture=job, batch_size=size)
        for set_id, *jobs in (("a", (eight, 8), (B, 20)), ("b", (sixteen, 16), (cell, 10)))
        for member, (job, size) in enumerate(jobs)
    ]
    rows[1]["architecture"] = "lstm-wikitext2"
    write_table(tmp_path, "colocation", make_table("colocation", rows))
    assert read_sets(tmp_path)[0]["architecture"].tolist() == [model, "lstm-wikitext2"] * 2


def test_titles_that_several_models_may_share_are_no_names(tmp_path: Path) -> None:
    graph = graph_for(Workload("lstm-wikitext2", batch_size=10))
    titles = ("my net: v2", "own:factory", "lstm-wikitext2", "graph:0123")
    named = [captured_from(register_graph(replace(graph, name=title))) for title in titles]
    assert named == [None, "own:factory", "lstm-wikitext2", None]
