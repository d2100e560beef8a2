"""Stand-ins for libraries that timm's networks need."""

from __future__ import annotations

import weakref

import torch
import torch.nn.functional as F

from profiling.capture import graph_for
from profiling.capture.sizes import kernels_by_channel, sizes_of
from profiling.collections.sources.timm import _kept_by_shape
from profiling.workload import Workload


def test_batch_norm_in_place_keeps_its_output_only() -> None:
    weight = torch.ones(3, device="meta", requires_grad=True)
    alive = {}
    for in_place in (False, True):
        x = torch.empty(4, 3, 8, 8, device="meta", requires_grad=True) * 2
        kept = weakref.ref(x.untyped_storage())
        norm = (x, None, None, weight, weight, True)
        if in_place:
            with _kept_by_shape(x):
                y = F.batch_norm(*norm)
        else:
            y = F.batch_norm(*norm)
        del x, norm
        alive[in_place] = kept() is not None
        y.sum().backward()
        assert weight.grad is not None
        weight.grad = None
    assert alive == {False: True, True: False}


def test_fast_norms_stay_in_half_precision() -> None:
    def dtypes(model: str) -> set[str]:
        graph = graph_for(Workload.parse(f"{model}/resnet50_gn:precision=amp"))
        return {op.dtype for op in graph.operators if op.kind == "group_norm"}

    assert dtypes("timm") == {"float32"}
    assert dtypes("timm-fast-norm") == {"float16"}


def test_kernels_by_channel_are_marked_where_they_are_called() -> None:
    shape = torch.empty(2, 8, 4, 4, device="meta")
    norm, relu = torch.ops.aten.native_batch_norm.default, torch.ops.aten.leaky_relu_.default
    arguments = (shape, None, None, None, None, True, 0.1, 1e-5)
    assert sizes_of(norm, "batch_norm", arguments, {}, shape).groups == 0
    with kernels_by_channel():
        assert sizes_of(norm, "batch_norm", arguments, {}, shape).groups == 8
        assert sizes_of(relu, "activation", (shape,), {}, shape).groups == 8
        assert sizes_of(relu, "activation", (shape[0, 0],), {}, shape[0, 0]).groups == 0
    assert sizes_of(relu, "activation", (shape,), {}, shape).groups == 0
