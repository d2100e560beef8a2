from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.cost import CostModel, default_cost_model
from models.cost.job import JobInput
from models.cost.layouts import are_channels_last
from models.cost.operator_features import CONTEXT_FEATURES, OPERATOR_FEATURES, context_of, operator_features
from predictor.training.cost.examples import merge_equal
from profiling.capture import graph_for
from profiling.devices import get_device
from profiling.errors import InputError
from profiling.workload import Workload

MODEL = default_cost_model()
# Networks whose graphs are stored, so that they are there at any batch size at once.
NAMES = (
    "torchvision/resnet50",
    "torchvision/vgg19",
    "torchvision/mobilenet_v2",
    "timm-0.6/vit_base_patch16_224",
)
CAPTURED = ("lstm-wikitext2", "bert-base-squad")
DEVICES = ("k80", "p100", "t4", "v100", "a100", "h100", "h200", "rtx-4090", "b200", "mi300x", "a100:mig=2g")


def step_s(workload: Workload, device: str, model: CostModel = MODEL) -> float:
    return model.cost(graph_for(workload.captured()), get_device(device), workload).step_time_s


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from((*NAMES, *CAPTURED)),
    device=st.sampled_from(DEVICES),
    precision=st.sampled_from(["fp32", "tf32", "amp", "bf16", "fp8"]),
    layout=st.sampled_from(["contiguous", "channels-last"]),
    mode=st.sampled_from(["training", "inference"]),
    batch_size=st.integers(1, 512),
)
def test_no_prediction_beats_the_data_sheet_and_steps_grow_with_the_batch(
    name: str, device: str, precision: str, layout: str, mode: str, batch_size: int
) -> None:
    if name.startswith("timm") and precision not in ("amp", "bf16", "fp8"):
        precision = "amp"
    workload = Workload(name, batch_size, precision=precision, memory_layout=layout, mode=mode)
    spec = get_device(device)
    if not spec.supports(precision):
        with pytest.raises(InputError, match="has no"):
            step_s(workload, device)
        return
    graph = graph_for(workload.captured())
    cost = MODEL.cost(graph, spec, workload)
    flops = graph.total("forward_flops") + (graph.total("backward_flops") if mode == "training" else 0.0)
    # Before Ampere, libraries run 3x3 convolutions in FP32 with 2.25 times fewer multiplications; see `work_of`.
    fewer = 2.25 if spec.compute_capability in ("6.0", "6.1", "7.0", "7.5") and precision == "fp32" else 1.0
    assert cost.step_time_s >= flops / fewer / spec.peak_flops(precision) * (1 - 1e-9)
    assert cost.step_time_s >= cost.floor_s
    assert 0 < cost.utilization_ratio <= 1
    double = replace(workload, batch_size=2 * batch_size)
    after = MODEL.cost(graph_for(double.captured()), spec, double)
    assert after.step_time_s >= cost.step_time_s * (1 - 1e-9)
    assert after.busy_s >= cost.busy_s * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(
    device=st.sampled_from(["h100", "h200", "rtx-4090", "b200", "mi300x", "h100:mig=3g"]),
    mode=st.sampled_from(["training", "inference"]),
    batch_size=st.integers(1, 256),
)
def test_steps_in_fp8_grow_with_the_batch_and_keep_to_the_peak(
    device: str, mode: str, batch_size: int
) -> None:
    spec = get_device(device)
    jobs = [
        Workload("timm/vit_base_patch16_224", n, precision="fp8", mode=mode)
        for n in (batch_size, batch_size + 1)
    ]
    costs = [MODEL.cost(graph_for(job.captured()), spec, job) for job in jobs]
    for job, cost in zip(jobs, costs, strict=True):
        graph = graph_for(job.captured())
        in_fp8 = [op for op in graph.operators if op.input_dtype == "float8_e4m3fn"]
        both = mode == "training"
        flops = sum(op.forward_flops + both * op.backward_flops for op in in_fp8)
        rest = graph.total("forward_flops") + both * graph.total("backward_flops") - flops
        least_s = flops / spec.fp8_flops + rest / spec.bf16_flops
        assert cost.compute_s == pytest.approx(least_s)
        assert cost.step_time_s >= cost.busy_s >= least_s
    assert costs[1].step_time_s >= costs[0].step_time_s * (1 - 1e-9)
    assert costs[1].busy_s >= costs[0].busy_s * (1 - 1e-9)


def test_operands_in_fp8_have_the_features_of_those_in_16_bits() -> None:
    kernels = [OPERATOR_FEATURES.index(name) for name in ("forward_kernels", "kernels")]
    amp, fp8 = (
        operator_features(
            graph_for(Workload(NAMES[3], 8, precision=p)).columns, np.zeros(len(CONTEXT_FEATURES))
        )
        for p in ("amp", "fp8")
    )
    np.testing.assert_array_equal(*(np.delete(features, kernels, axis=1) for features in (amp, fp8)))


def test_large_products_gain_by_fp8() -> None:
    workload = Workload("gpt-7b", 4, data_on_device=True)
    amp, fp8 = (step_s(replace(workload, precision=p), "h100") for p in ("amp", "fp8"))
    assert 1.1 < amp / fp8 < 2.0
    assert not MODEL.has_measured("rtx-4090", "fp8")
    assert MODEL.has_measured("rtx-4090", "amp")


@pytest.mark.parametrize("name", [*NAMES, "timm/efficientformerv2_s0"])
def test_features_of_operators_do_not_depend_on_the_batch(name: str) -> None:
    context = np.zeros(len(CONTEXT_FEATURES))
    graphs = [graph_for(Workload(name, batch, precision="amp")) for batch in (1, 2, 7, 64)]
    features = [operator_features(graph.columns, context) for graph in graphs]
    for other in features[1:]:
        np.testing.assert_array_equal(other, features[0])


def test_convolutions_with_per_sample_weights_are_not_channels_last() -> None:
    workload = Workload("timm/efficientnet_cc_b0_4e", 16, precision="amp", memory_layout="channels-last")
    graph = graph_for(workload.captured())
    channels_last = are_channels_last(graph.columns, graph.batch_size)
    features = operator_features(graph.columns, context_of(workload, False), channels_last)
    column = features[:, OPERATOR_FEATURES.index("channels_last")]
    contiguous = {op.name for op, flag in zip(graph.operators, column, strict=True) if not flag}
    # The last three stages of the network have them (Yang et al., NeurIPS 2019).
    assert contiguous
    assert all("convolution" in n and n.startswith(("blocks.4", "blocks.5", "blocks.6")) for n in contiguous)
    assert not any(".se." in name for name in contiguous)
    times = [step_s(replace(workload, batch_size=b), "rtx-3090") for b in (1, 2, 3, 4, 8, 16)]
    assert times == sorted(times)


def test_a_faster_device_of_the_same_kind_is_faster() -> None:
    workload = Workload("torchvision/resnet50", 64)
    slow = replace(get_device("v100"), name="custom")
    for change in ({"fp32_flops": slow.fp32_flops * 2}, {"memory_bandwidth_bytes_per_s": 2e12}):
        fast = replace(slow, **change)
        graph = graph_for(workload)
        assert MODEL.cost(graph, fast, workload).step_time_s < MODEL.cost(graph, slow, workload).step_time_s


@pytest.mark.parametrize("name", ["torchvision/resnet50", "torchvision/vgg19"])
def test_unmeasured_tf32_is_no_slower_than_fp32(name: str) -> None:
    workload = Workload(name, 64, data_on_device=True)
    for device in ("rtx-4090", "rtx-5090", "l40s", "h100", "b200"):
        assert f"{device} tf32" not in MODEL.devices
        plain, tensor = (step_s(replace(workload, precision=p), device) for p in ("fp32", "tf32"))
        assert tensor <= plain
        job = JobInput.of(
            graph_for(replace(workload, precision="tf32").captured()),
            get_device(device),
            replace(workload, precision="tf32"),
        )
        assert job.in_fp32 is not None
        assert MODEL.cost_of(job.in_fp32).step_time_s == pytest.approx(plain)
        assert MODEL.cost_of(merge_equal(job)).step_time_s == pytest.approx(tensor)
    assert "a100 tf32" in MODEL.devices


@pytest.mark.parametrize("device", ["p100", "v100-32gb", "a100", "titan-rtx", "h100", "mi300x", "cpu"])
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_fp64_is_no_faster_than_fp32(device: str, mode: str) -> None:
    for name in ("torchvision/mobilenet_v2", "torchvision/vgg19", "mobilenetv2-cifar"):
        for batch_size, data_on_device in ((2, True), (32, False)):
            single = Workload(name, batch_size, mode=mode, data_on_device=data_on_device)
            double = replace(single, precision="fp64")
            assert step_s(single, device) <= step_s(double, device) * (1 + 1e-9)
            graph, spec = graph_for(double.captured()), get_device(device)
            cost, job = MODEL.cost(graph, spec, double), JobInput.of(graph, spec, double)
            assert cost.step_time_s >= cost.floor_s == pytest.approx(job.floor_s)


def test_fp32_on_newer_cards_gains_by_fewer_multiplications_up_to_the_peak() -> None:
    workload = Workload("torchvision/vgg19", 32)
    cost = MODEL.cost(graph_for(workload), get_device("a100"), workload)
    assert cost.floor_s <= cost.step_time_s <= 1.15 * cost.floor_s


def test_inference_and_frozen_layers_are_masks() -> None:
    graph = graph_for(Workload("torchvision/resnet50", 32))
    device = get_device("v100")

    def cost(**options: object) -> float:
        return MODEL.cost(graph, device, Workload("torchvision/resnet50", 32, **options)).step_time_s  # type: ignore[arg-type]

    whole, inference = cost(), cost(mode="inference")
    frozen = [cost(frozen_prefix=k) for k in (0, 10, 100)]
    assert inference < frozen[2] < frozen[1] < frozen[0] == whole


def test_a_compiler_keeps_intermediate_tensors_out_of_memory() -> None:
    workload = Workload("torchvision/mobilenet_v2", 128, precision="amp", mode="inference")
    assert step_s(replace(workload, compiler="compile"), "rtx-4090") < step_s(workload, "rtx-4090")


def test_an_unknown_gpu_gets_the_mean_shift_of_measured_ones() -> None:
    workload = Workload("torchvision/resnet50", 32)
    graph, device = graph_for(workload), get_device("v100")
    assert device.name in MODEL.devices
    stranger = MODEL.cost(graph, replace(device, name="custom"), workload).step_time_s
    assert stranger != MODEL.cost(graph, device, workload).step_time_s
    # Where all effects are equal, a stranger has them too, and those of a processor do not count.
    table = MODEL.members[0]["device_effect"]
    equal = np.where([[name.startswith("cpu")] for name in (*MODEL.devices, "")], 9.0, 0.3) + 0 * table
    model = replace(MODEL, members=({**MODEL.members[0], "device_effect": equal},))
    assert model.cost(graph, replace(device, name="custom"), workload).step_time_s == pytest.approx(
        model.cost(graph, device, workload).step_time_s
    )


def test_an_unmeasured_board_uses_the_shift_of_the_same_chip() -> None:
    # In AMP neither of the first two was measured, and of the A100s the one with 40 GB.
    amp = Workload("torchvision/resnet50", 64, precision="amp", data_on_device=True)
    assert step_s(amp, "v100") == step_s(amp, "v100-32gb")
    smaller, larger = step_s(amp, "a100"), step_s(amp, "a100-80gb")
    bandwidth = [get_device(name).memory_bandwidth_bytes_per_s for name in ("a100", "a100-80gb")]
    assert 1.0 < smaller / larger < bandwidth[1] / bandwidth[0]
    # Of two A100s the one with the same memory counts: its board of 250 W is no faster than that of 400 W.
    tf32 = Workload("torchvision/resnet50", 64, precision="tf32", data_on_device=True)
    assert step_s(tf32, "a100-pcie") > step_s(tf32, "a100")
    # A slice counts as its card, whichever is asked about first.
    for names in (("a100-pcie-80gb", "a100-pcie-80gb:mig=1g"), ("a100-pcie-80gb:mig=1g", "a100-pcie-80gb")):
        model = CostModel(MODEL.members, MODEL.devices, MODEL.campaigns)
        rows = [model._effect_rows(get_device(name), "tf32") for name in names]
        assert rows == [model._effect_rows(get_device("a100-80gb"), "tf32")] * 2
    # Each keeps to its own where it was measured.
    assert step_s(replace(amp, precision="fp32"), "v100") != step_s(
        replace(amp, precision="fp32"), "v100-32gb"
    )


def test_an_unknown_campaign_has_no_effect() -> None:
    workload = Workload("torchvision/resnet50", 32)
    graph, device = graph_for(workload), get_device("v100")
    assert MODEL.cost(graph, device, workload, "nobody's").step_time_s == step_s(workload, "v100")
    assert MODEL.cost(graph, device, workload, MODEL.campaigns[0]).step_time_s != step_s(workload, "v100")


def test_saved_and_loaded(tmp_path: Path) -> None:
    MODEL.save(tmp_path)
    again = CostModel.load(tmp_path)
    workload = Workload("torchvision/vgg19", 16)
    assert step_s(workload, "a100", again) == step_s(workload, "a100")
    card = (tmp_path / "card.json").read_text()
    (tmp_path / "card.json").write_text(card.replace('"gemm_n"', '"gemm_m"'))
    with pytest.raises(InputError, match="unsupported version"):
        CostModel.load(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        CostModel.load(tmp_path / "nowhere")


def test_truncated_coefficients_are_refused(tmp_path: Path) -> None:
    MODEL.save(tmp_path)
    arrays = tmp_path / "cost.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"cannot read a cost model from .*: expected card\.json and"):
        CostModel.load(tmp_path)


def test_operators_add_up() -> None:
    workload = Workload("torchvision/resnet50", 32)
    job = JobInput.of(graph_for(workload), get_device("v100"), workload)
    cost = MODEL.cost_of(job)
    assert cost.operators.busy_s.sum() + cost.optimizer_s == pytest.approx(cost.busy_s)
    assert cost.step_time_s > max(cost.busy_s, cost.launch_s)
    assert (cost.operators.busy_s >= cost.operators.compute_s * (1 - 1e-9)).all()
    assert np.isfinite(cost.operators.busy_s).all()


def test_a_smaller_share_of_the_multiprocessors_is_never_faster() -> None:
    for network in ("resnet50", "mobilenet_v2", "vgg11"):
        workload = Workload(f"torchvision/{network}", 8, mode="inference")
        seconds = [
            step_s(replace(workload, sm_share_ratio=share), "v100") for share in (1.0, 0.9, 0.5, 0.1, 0.05)
        ]
        assert seconds == sorted(seconds)
        assert seconds[-1] < 20.0 * seconds[0] * 1.01


@pytest.mark.parametrize("card", ["a100-pcie", "a100-pcie-80gb", "h100-nvl", "h100-pcie"])
def test_a_slice_is_never_faster_than_a_larger_one_or_the_card(card: str) -> None:
    for network in ("resnet50", "mobilenet_v2"):
        workload = Workload(f"torchvision/{network}", 8)
        seconds = [step_s(workload, f"{card}{part}") for part in ("", ":mig=7g", ":mig=3g", ":mig=1g")]
        assert seconds == sorted(seconds)


@pytest.mark.parametrize("device", ["k80", "v100", "a100:mig=1g"])
def test_a_share_leaves_at_least_one_multiprocessor(device: str) -> None:
    workload = Workload("torchvision/resnet50", 8, mode="inference")
    one = step_s(replace(workload, sm_share_ratio=1 / get_device(device).sm_count), device)
    for share in (0.5 / get_device(device).sm_count, 1e-3, 1e-300):
        assert step_s(replace(workload, sm_share_ratio=share), device) == one


def test_a_device_file_with_only_the_required_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "my-gpu: {sm_count: 58, clock_hz: 2.04e+9, fp32_flops: 30.3e+12, memory_bytes: 25769803776,"
        " memory_bandwidth_bytes_per_s: 300e+9}"
    )
    monkeypatch.setenv("COTENANT_DEVICES", str(path))
    assert 0 < step_s(Workload(NAMES[0], 16), "my-gpu") < 10


@pytest.mark.parametrize("device", ["k80", "p100", "v100", "a100", "h100"])
def test_the_loss_of_a_large_vocabulary_takes_a_few_passes_over_memory(device: str) -> None:
    """The losses in the training data are too small to have an efficiency of their own."""
    workload, spec = Workload("lstm-wikitext2", 80), get_device(device)
    graph = graph_for(workload.captured())
    cost = MODEL.cost(graph, spec, workload)
    is_loss = np.array([op.kind == "loss" for op in graph.operators])
    least_s = cost.operators.traffic_bytes[:, is_loss].sum() / spec.memory_bandwidth_bytes_per_s
    assert least_s < cost.operators.busy_s[:, is_loss].sum() < 5 * least_s


@pytest.mark.parametrize("device", ["rtx-3090", "rtx-4090", "rtx-5090"])
def test_small_outputs_are_interpolated_slowly_unless_a_compiler_writes_the_kernel(device: str) -> None:
    text = "timm/efficientformerv2_s0:batch_size=1024,precision=amp,mode=inference,data_on_device=true"
    eager, compiled = Workload.parse(text), Workload.parse(f"{text},compiler=compile")
    graph, spec = graph_for(eager.captured()), get_device(device)
    is_resize = np.array([op.kind == "resize" for op in graph.operators])

    def busy_s(workload: Workload) -> float:
        return float(MODEL.cost(graph, spec, workload).operators.busy_s[:, is_resize].sum())

    assert 0.5 < busy_s(eager) < 1.0
    assert busy_s(compiled) < 0.02


def test_half_precision_without_its_arithmetic_is_no_leap() -> None:
    """A K80 has one peak for all precisions, and was measured in FP32 only."""
    full, half = (
        step_s(Workload.parse(f"torchvision/resnet50:batch_size=64,precision={p}"), "k80")
        for p in ("fp32", "amp")
    )
    assert 1.0 <= full / half < 2.0


@pytest.mark.parametrize("device", ["v100", "a100"])
def test_a_compiler_leaves_recurrent_layers_alone(device: str) -> None:
    plain = Workload.parse("lstm-wikitext2:data_on_device=true")
    graph = graph_for(plain)
    recurrent = np.array([op.kind == "recurrent" for op in graph.operators])
    eager, compiled = (
        MODEL.cost(graph, get_device(device), job) for job in (plain, replace(plain, compiler="compile"))
    )
    times = [cost.operators.busy_s[:, recurrent] for cost in (eager, compiled)]
    assert times[0].sum() > 0
    np.testing.assert_allclose(*times)
    launches = float(eager.operators.kernels[:, recurrent].sum())
    assert launches < compiled.launches < eager.launches
