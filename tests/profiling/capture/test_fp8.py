from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from profiling.capture import capture_module, graph_for
from profiling.capture.fp8 import in_fp8, out_of_fp8
from profiling.capture.precision import with_precision
from profiling.errors import InputError
from profiling.graph import ComputationGraph, Operator
from profiling.workload import Workload
from profiling.zoo import build

GPT = "gpt-125m:batch_size=2,sequence_length=64"
STORED = "timm/vit_tiny_patch16_224:batch_size=8"


def captured(spec: str, precision: str) -> ComputationGraph:
    return graph_for(replace(Workload.parse(spec), precision=precision))


def layer(rows: int, width: int, sinks: int, precision: str, **options: bool) -> Operator:
    job = Workload("layer", precision=precision)
    inputs = torch.randn(rows, width, requires_grad=True)
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.Linear(width, sinks, bias=False))
    return capture_module(model, inputs, workload=job, **options).operators[1]


@pytest.mark.parametrize("spec", [GPT, STORED, "bert-base-squad:batch_size=2,sequence_length=64"])
def test_linear_layers_multiply_in_fp8_and_all_else_stays_in_16_bits(spec: str) -> None:
    amp, fp8 = captured(spec, "amp"), captured(spec, "fp8")
    assert fp8.options["precision"] == "fp8"
    for before, after in zip(amp.operators, fp8.operators, strict=True):
        sides = before.sizes.gemm_n, before.sizes.gemm_k
        if before.kind == "linear" and all(side % 16 == 0 for side in sides):
            assert (after.input_dtype, after.weight_dtype) == ("float8_e4m3fn",) * 2
            assert after.kernel_count == before.kernel_count + 2
        else:
            assert "float8" not in after.input_dtype + after.weight_dtype
            assert after.bytes_read == before.bytes_read
        assert after.dtype == before.dtype.replace("float16", "bfloat16")
        assert after.forward_flops == before.forward_flops
    assert any("float8" in op.input_dtype for op in fp8.operators)
    held = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")
    assert [getattr(fp8, name) for name in held] == [getattr(amp, name) for name in held]


@pytest.mark.parametrize(("width", "sinks"), [(64, 40), (40, 64), (24, 24)])
def test_other_sizes_stay_in_16_bits(width: int, sinks: int) -> None:
    assert layer(32, width, sinks, "fp8").input_dtype == "bfloat16"
    assert layer(32, width, sinks, "fp8", static=True).input_dtype == "bfloat16"


@pytest.mark.parametrize("rows", [1, 12, 32])
def test_rows_do_not_decide(rows: int) -> None:
    """Otherwise a step might be faster with one more sample."""
    assert layer(rows, 64, 48, "fp8").input_dtype == "float8_e4m3fn"
    assert layer(rows, 64, 48, "fp8", static=True).input_dtype == "float8_e4m3fn"


def test_traffic_is_that_of_casts_and_narrower_operands() -> None:
    rows, width, sinks = 32, 64, 48
    before, after = (layer(rows, width, sinks, precision) for precision in ("amp", "fp8"))
    source, weight, result = rows * width, width * sinks, rows * sinks
    # The cast reads the input in 16 bits, the product reads one byte per element less.
    assert after.bytes_read - before.bytes_read == 2 * source - source - weight
    assert after.bytes_written - before.bytes_written == 2 * source
    # The gradient is read by the cast and by two products, and written twice.
    backward = (2 + 1 + 1 - 4) * result + 2 * result - source - weight
    assert after.backward_bytes - before.backward_bytes == backward


@pytest.mark.parametrize("spec", [GPT, STORED])
def test_there_and_back(spec: str) -> None:
    amp = captured(spec, "amp")
    assert out_of_fp8(in_fp8(amp)).to_dict() == amp.to_dict()
    assert with_precision(captured(spec, "fp8"), "amp").to_dict() == amp.to_dict()
    assert with_precision(in_fp8(amp), "fp32") == with_precision(amp, "fp32")
    assert with_precision(amp, "fp8") == in_fp8(amp)


def test_a_checkpointed_layer_is_cast_once_more() -> None:
    amp, fp8 = (captured(f"{GPT},activation_checkpointing=true", p) for p in ("amp", "fp8"))
    extra = [b.kernel_count - a.kernel_count for a, b in zip(amp.operators, fp8.operators, strict=True)]
    casts = {op.name: n for op, n in zip(fp8.operators, extra, strict=True) if op.module_path.endswith("qkv")}
    assert set(casts.values()) == {3}


def test_no_job_runs_in_it() -> None:
    with pytest.raises(InputError, match="can be predicted, but not run"):
        build(Workload("neumf-ml1m", 8, precision="fp8"))
