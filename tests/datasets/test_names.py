from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from datasets.derived import columns_of
from datasets.user_files import add_rows, check_file, template
from profiling.capture import graph_for, register_graph
from profiling.errors import UnknownNameError
from profiling.workload import Workload
from tests.profiling.capture.test_local import here  # noqa: F401


def checked(text: str, folder: Path, table: str | None = None):  # type: ignore[no-untyped-def]
    (folder / "mine.csv").write_text(text)
    return check_file(folder / "mine.csv", table)[1:]


def test_an_unknown_device_is_a_fault_in_every_row(tmp_path: Path) -> None:
    _, faults = checked(template().replace(",v100,", ",v1000,"), tmp_path)
    assert [(fault.row, fault.column, fault.got) for fault in faults] == [
        (1, "device", "'v1000'"),
        (2, "device", "'v1000'"),
    ]
    assert "v100" in faults[0].expected
    assert "COTENANT_DEVICES" in faults[0].expected
    (fault,) = checked(template("memory").replace("v100,", "v1000,"), tmp_path, "memory")[1]
    assert fault.column == "device"


@pytest.mark.parametrize(
    ("name", "expected", "got"),
    [
        ("resnet18-cifarr:batch_size=64", "resnet18-cifar", "not in the zoo"),
        ("resnet18-cifar:image_size=224", "a model of", "a fixed image size"),
        ("missing.json", "cotenant capture -o", "no file at missing.json"),
        ("no_such_module:make", "module:factory", "cannot be imported"),
        ('"resnet18-cifar:batch_size=64,frozen_prefix=999"', "a frozen_prefix from 0 to 41", "fewer layers"),
        ('"timm/resnet18:batch_size=64,frozen_prefix=999"', "a frozen_prefix from 0 to", "fewer layers"),
        ('"timm/resnet18:batch_size=64,image_size=13"', "one of", "is not stored for this image_size"),
        ("0123456789abcdef", "the hash printed by `cotenant capture`", "no captured graph"),
    ],
)
def test_an_unknown_model_is_a_fault(tmp_path: Path, name: str, expected: str, got: str) -> None:
    (fault,) = checked(template().replace("resnet18-cifar:batch_size=64", name), tmp_path)[1]
    assert (fault.row, fault.column) == (1, "workload")
    assert expected in fault.expected
    assert got in fault.got


def test_every_unknown_model_is_a_fault(tmp_path: Path) -> None:
    _, faults = checked(template().replace("resnet18-cifar", "a").replace("lstm-wikitext2", "b"), tmp_path)
    assert [fault.row for fault in faults] == [1, 2]


def test_names_are_stored_as_in_the_catalogue(tmp_path: Path) -> None:
    text = template().replace(",v100,", ",V100-16GB ,").replace("resnet18-cifar:", "ResNet-18:")
    rows, faults = checked(text, tmp_path)
    assert (faults, set(rows["device"])) == ([], {"v100"})
    assert rows.loc[0, ["workload", "architecture"]].tolist() == [
        "resnet18-cifar:batch_size=64",
        "resnet18-cifar",
    ]
    # A later file in the same process gets its columns from the SPEC, and not from this one's rows.
    assert columns_of("resnet18-cifar:batch_size=64")["architecture"] == "resnet18-cifar"
    lean = pd.read_csv(io.StringIO(template())).drop(columns="architecture", errors="ignore")
    rows, faults = checked(lean.to_csv(index=False), tmp_path)
    assert (faults, rows["architecture"].tolist()) == ([], ["resnet18-cifar", "lstm-wikitext2"])


def test_spellings_of_one_job_become_one(tmp_path: Path) -> None:
    spellings = (
        "lstm-wikitext2",
        "lstm-wikitext2:batch_size=20",
        "lstm-wikitext2:optimizer=sgd,precision=fp32",
    )
    for spec in spellings:
        text = template("solo").replace("2064.5", "").replace("resnet18-cifar:batch_size=64", f'"{spec}"')
        rows, faults = checked(text, tmp_path, "solo")
        assert (faults, rows["workload"].tolist()) == ([], ["lstm-wikitext2"])
    line = text.splitlines()[1]
    (fault,) = checked(text + line.replace(spellings[2], spellings[1]) + "\n", tmp_path, "solo")[1]
    assert (fault.row, fault.expected) == (2, "each key once")
    assert fault.got.endswith(", as in row 1")


def test_a_spec_with_measurements_is_a_fault(tmp_path: Path) -> None:
    spec = '"resnet18-cifar:batch_size=64,step_time_s=0.5"'
    (fault,) = checked(template().replace("resnet18-cifar:batch_size=64", spec), tmp_path)[1]
    assert (fault.row, fault.column) == (1, "workload")
    assert "solo_step_time_s" in fault.expected
    assert "step_time_s=0.5" in fault.got


@pytest.mark.parametrize(
    ("device", "sharing", "row"), [("v100", "mig", 1), ("a100:mig=3g", "mig", 1), ("a100", "mig", None)]
)
def test_sets_that_mig_cannot_hold_are_faults(
    tmp_path: Path, device: str, sharing: str, row: int | None
) -> None:
    text = template().replace(",v100,time-slice,", f",{device},{sharing},")
    faults = checked(text, tmp_path)[1]
    assert [(fault.row, fault.column) for fault in faults] == ([(row, "sharing")] if row else [])
    assert all("a whole card with MIG" in fault.expected and fault.got == device for fault in faults)


@pytest.mark.usefixtures("here")
def test_a_user_model_is_captured_and_usable_for_training(tmp_path: Path) -> None:
    text = template().replace("resnet18-cifar:batch_size=64", "own_factory_of_test:factory:batch_size=16")
    rows, faults = checked(text, tmp_path)
    assert faults == []
    add_rows(tmp_path / "tables", "colocation", rows)
    job = Workload.parse(rows["workload"][0])
    assert job.model.startswith("graph:")
    assert graph_for(job).batch_size == 16
    assert rows.loc[0, ["architecture", "batch_size"]].tolist() == ["own_factory_of_test:factory", 16]


@pytest.mark.usefixtures("here")
def test_captures_of_one_model_are_one_architecture(tmp_path: Path) -> None:
    jobs = [Workload("own_factory_of_test:factory", batch_size=size) for size in (8, 16)]
    jobs.append(Workload("lstm-wikitext2", batch_size=10))
    graphs = [graph_for(job, local=True) for job in jobs]
    for job, graph in zip(jobs, graphs, strict=True):
        graph.save(tmp_path / f"{job.batch_size}.json")
    hashed = register_graph(graphs[1]).removeprefix("graph:")
    specs = ("own_factory_of_test:factory:batch_size=8", "8.json", "16.json", hashed[:12], "10.json")
    stored = []
    for name in specs:
        rows, faults = checked(template().replace("resnet18-cifar:batch_size=64", name), tmp_path)
        assert faults == []
        stored.append(rows.loc[0, "architecture"])
    assert stored == ["own_factory_of_test:factory"] * 4 + ["lstm-wikitext2"]
    for titled in (replace(graphs[0], name="Net"), replace(graphs[0], name="lstm-wikitext2", source="onnx")):
        titled.save(tmp_path / "net.json")
        rows, _ = checked(template().replace("resnet18-cifar:batch_size=64", "net.json"), tmp_path)
        assert rows.loc[0, "architecture"] == "net.json"


def test_a_factory_is_refused_with_a_hint_where_code_is_not_run() -> None:
    with pytest.raises(UnknownNameError, match=r"graph:HASH.*cotenant capture"):
        graph_for(Workload("own_factory_of_test:factory"))


@pytest.mark.usefixtures("here")
def test_columns_must_agree_with_the_captured_graph(tmp_path: Path) -> None:
    job = Workload("own_factory_of_test:factory", batch_size=16, precision="amp")
    graph_for(job, local=True).save(tmp_path / "own.json")
    for name in ("own.json", '"own_factory_of_test:factory:batch_size=16,precision=amp"'):
        text = template("solo").replace("2064.5", "").replace("resnet18-cifar:batch_size=64", name)
        header, row = text.splitlines()
        text = f"{header},precision,batch_size\n{row},"
        rows, faults = checked(f"{text}amp,16\n", tmp_path, "solo")
        assert (faults, rows.loc[0, ["precision", "batch_size"]].tolist()) == ([], ["amp", 16])
        faults = checked(f"{text}fp32,64\n", tmp_path, "solo")[1]
        assert [(fault.column, fault.got) for fault in faults] == [
            ("batch_size", "64"),
            ("precision", "'fp32'"),
        ]


def test_an_image_size_other_than_the_default_belongs_in_the_spec(tmp_path: Path) -> None:
    for spec, size, message in (
        ("resnet18-cifar:batch_size=64", 300, "has one image_size only"),
        ("torchvision/resnet18:batch_size=64", 300, "224, the image_size of"),
        ("torchvision/resnet18:batch_size=64", 224, None),
    ):
        header, row = template("solo").replace("resnet18-cifar:batch_size=64", spec).splitlines()
        faults = checked(f"{header},image_size\n{row},{size}\n", tmp_path, "solo")[1]
        assert [(fault.row, fault.column, fault.got) for fault in faults] == (
            [(1, "image_size", "300")] if message else []
        )
        assert message is None or message in faults[0].expected


def test_a_precision_that_the_device_lacks_is_a_fault(tmp_path: Path) -> None:
    text = template().replace("resnet18-cifar:batch_size=64", '"resnet18-cifar:batch_size=64,precision=fp8"')
    (fault,) = checked(text, tmp_path)[1]
    assert (fault.row, fault.column) == (1, "workload")
    assert "h100" in fault.expected
    assert "precision fp8 on v100" in fault.got
    assert checked(text.replace("v100", "h100"), tmp_path)[1] == []


def test_a_batch_size_other_than_the_default_belongs_in_the_spec(tmp_path: Path) -> None:
    text = template("solo").replace("2064.5", "").replace("resnet18-cifar:batch_size=64", "lstm-wikitext2")
    header, row = text.splitlines()
    rows, faults = checked(f"{header},batch_size\n{row},\n", tmp_path, "solo")
    assert (faults, rows["batch_size"].tolist()) == ([], [20])
    (fault,) = checked(f"{header},batch_size\n{row},64\n", tmp_path, "solo")[1]
    assert (fault.row, fault.column, fault.got) == (1, "batch_size", "64")
    assert "20" in fault.expected


def test_a_job_that_cannot_be_captured_is_named_once(tmp_path: Path) -> None:
    text = template().replace("resnet18-cifar:batch_size=64", "tests.profiling.measure.jobs:detached")
    (fault,) = checked(text, tmp_path)[1]
    assert fault.got == "'tests.profiling.measure.jobs:detached': no parameter gets a gradient from the loss"
