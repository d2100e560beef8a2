from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.capture import graph_for
from profiling.errors import InputError, UnknownNameError
from profiling.workload import Workload
from scheduling.pipeline.inputs import read_input


def test_a_measured_step_time_scales_the_operators() -> None:
    plain = read_input("resnet18-cifar:batch_size=64", "v100")
    measured = read_input("resnet18-cifar:batch_size=64,step_time_s=0.5", "v100")
    assert sum(map(sum, measured.times or ())) == pytest.approx(0.5)
    factor = 0.5 / sum(map(sum, plain.times or ()))
    assert measured.times is not None
    assert plain.times is not None
    assert measured.times[3][1] == pytest.approx(factor * plain.times[3][1])


def test_the_options_of_a_spec_decide_its_times() -> None:
    eager, compiled = (
        read_input(f"resnet18-cifar:batch_size=64,precision=amp,compiler={c}", "v100").times
        for c in ("eager", "compile")
    )
    assert sum(map(sum, compiled or ())) < sum(map(sum, eager or ()))


@pytest.mark.parametrize(
    "option", ["sm_share_ratio=0.5", "memory_bytes=1e9", "mode=inference", "frozen_prefix=3"]
)
def test_options_without_effect_are_refused(option: str) -> None:
    with pytest.raises(InputError, match=option.partition("=")[0]):
        read_input(f"resnet18-cifar:{option}", "v100")


def test_what_was_never_measured_is_stated() -> None:
    assert read_input("resnet18-cifar", "v100").never_measured == ""
    assert "never measured on this GPU type" in read_input("resnet18-cifar", "a30").never_measured
    assert read_input("resnet18-cifar:step_time_s=0.1", "a30").never_measured == ""


def test_an_unknown_device_is_refused_beside_a_profile_too() -> None:
    with pytest.raises(UnknownNameError):
        read_input("vgg16.graph.txt", "v1000")


def test_a_graph_without_operators_is_refused_with_a_step_time_too(tmp_path: Path) -> None:
    body = graph_for(Workload("resnet18-cifar")).to_dict()
    body |= {"operators": {column: [] for column in body["operators"]}, "edges": []}
    (tmp_path / "graph.json").write_text(json.dumps(body))
    for spec in ("graph.json", "graph.json:step_time_s=0.1"):
        with pytest.raises(InputError, match="cannot be planned"):
            read_input(str(tmp_path / spec), "v100").states()
