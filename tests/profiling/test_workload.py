"""Options of a job: what is refused, what a SPEC means, and which of them change the graph."""

from __future__ import annotations

from typing import Any

import pytest

from profiling.errors import InputError
from profiling.workload import STEP_TIMES_S, ColocationSet, SoloProfile, Workload


@pytest.mark.parametrize(
    ("option", "least", "most"),
    [
        ("batch_size", 1, 10**9),
        ("sequence_length", 1, 10**9),
        ("image_size", 1, 10**9),
        ("frozen_prefix", 0, 10**9),
        ("gradient_accumulation", 1, 10**9),
    ],
)
def test_integers_have_a_range(option: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(Workload("net", **{option: value}), option) == value
    for wrong in (least - 1, most + 1, True, 2.0, "2"):
        with pytest.raises(InputError, match=f"{option} of net is out of range.*got {wrong!r}"):
            Workload("net", **{option: wrong})


@pytest.mark.parametrize("option", ["frozen_prefix", "gradient_accumulation"])
def test_integers_with_a_default_of_their_own_are_not_none(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} of net is out of range"):
        Workload("net", **{option: None})


@pytest.mark.parametrize(
    "option", ["mode", "precision", "framework", "compiler", "memory_layout", "optimizer"]
)
def test_choices(option: str) -> None:
    with pytest.raises(InputError, match=f"unknown {option}"):
        Workload("net", **{option: "other"})
    if option != "optimizer":
        with pytest.raises(InputError, match=f"unknown {option}"):
            Workload("net", **{option: None})


@pytest.mark.parametrize("option", ["data_on_device", "activation_checkpointing"])
def test_flags(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} of net is not a flag"):
        Workload("net", **{option: 1})
    assert getattr(Workload.parse(f"net:{option}=True"), option) is True
    assert getattr(Workload.parse(f"net:{option}=false"), option) is False


def test_a_share_is_above_0_and_at_most_1() -> None:
    assert Workload("net", sm_share_ratio=1).sm_share_ratio == 1
    for wrong in (0, 1.001, -0.5, float("nan"), True, "0.5"):
        with pytest.raises(InputError, match="sm_share_ratio is out of range"):
            Workload("net", sm_share_ratio=wrong)  # type: ignore[arg-type]


def test_measurements_have_a_range() -> None:
    for step_time_s in STEP_TIMES_S:
        assert SoloProfile(step_time_s=step_time_s).step_time_s == step_time_s
    for values in (
        {"step_time_s": 0.9 * STEP_TIMES_S[0]},
        {"step_time_s": 1.1 * STEP_TIMES_S[1]},
        {"memory_bytes": 0.0},
        {"memory_bytes": float("inf")},
        {"utilization_ratio": 1.1},
        {"utilization_ratio": -0.1},
        {"memory_bandwidth_ratio": 1.1},
        {"memory_bandwidth_ratio": float("nan")},
    ):
        with pytest.raises(InputError, match=f"{next(iter(values))} is out of range"):
            SoloProfile(**values)
    SoloProfile(utilization_ratio=0.0, memory_bandwidth_ratio=1.0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "a job needs a model"),
        ("batch_size=4", "job SPEC has no model"),
        ("net;batch_size=4,precision=amp", r"did you mean net:batch_size=4,precision=amp\?$"),
        ("net, batch_size=4", r"did you mean net:batch_size=4\?$"),
        ("net:batch_size=4,precision", "is malformed"),
        ("net:batch_size=4,batch_size=8", "gives batch_size twice"),
        ("net:batchsize=4", "has an unknown key"),
        ("net:batch_size=4.5", "batch_size is not an integer"),
        ("net:step_time_s=fast", "step_time_s is not a number"),
        ("net:data_on_device=yes", "data_on_device"),
    ],
)
def test_faulty_specs(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Workload.parse(spec)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "a job needs a model"),
        ({"workload": 3}, "a job needs a model"),
        ({"workload": "net", "model": "net"}, "unknown job option 'workload'"),
        ({"workload": "net", "batchsize": 4}, "unknown job option 'batchsize'"),
        ({"workload": "net", "step_time_s": "fast"}, "step_time_s is not a number"),
    ],
)
def test_faulty_mappings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Workload.from_mapping(values)


def test_a_mapping_and_a_spec_lead_back_to_the_job() -> None:
    job = Workload("net", batch_size=4, data_on_device=True, solo=SoloProfile(0.5, utilization_ratio=0.0))
    assert str(job) == "net:batch_size=4,data_on_device=true,step_time_s=0.5,utilization_ratio=0.0"
    assert Workload.parse(str(job)) == Workload.from_mapping(job.to_mapping()) == job
    assert Workload.from_mapping({"model": "net", "batch_size": None, "step_time_s": None}) == Workload("net")
    assert str(Workload("net")) == "net"


def test_a_path_may_hold_an_equals_sign() -> None:
    assert Workload.parse("runs/lr=0.1/model.onnx") == Workload("runs/lr=0.1/model.onnx")


def test_which_graph_a_job_uses() -> None:
    graph = Workload(
        "net", batch_size=4, precision="amp", gradient_accumulation=2, activation_checkpointing=True
    )
    job = Workload(
        "net",
        batch_size=4,
        precision="amp",
        gradient_accumulation=2,
        activation_checkpointing=True,
        frozen_prefix=3,
        sm_share_ratio=0.5,
        data_on_device=True,
        solo=SoloProfile(0.5),
    )
    assert job.captured() == graph
    inference = Workload(
        "net", batch_size=4, mode="inference", gradient_accumulation=2, activation_checkpointing=True
    )
    assert inference.captured() == Workload("net", batch_size=4)
    one = Workload("net", batch_size=1, mode="inference")
    assert one.captured() == one


def test_faulty_sets() -> None:
    with pytest.raises(InputError, match="a co-location set is empty"):
        ColocationSet("v100", ())
    with pytest.raises(InputError, match=r"expected a Workload, got 'net'\. Workload\.parse\(SPEC\)"):
        ColocationSet("v100", ("net",))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown sharing mode"):
        ColocationSet("v100", (Workload("net"),), "other")
