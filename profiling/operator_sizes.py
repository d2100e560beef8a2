"""`OperatorSizes`: the dimensions of an operator that determine its speed on a device."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class OperatorSizes:
    """Dimensions of **one** execution.

    0 if an operator has no such dimension or its source does not state it.

    A contraction is given as the batched matrix product (`gemm_batch`, `gemm_m`, `gemm_n`, `gemm_k`) that
    computes it, batch samples included:

    * convolution: groups, positions of the output over all samples, output channels of a group, input
      channels of a group times kernel taps (implicit GEMM; Chetlur et al., "cuDNN", 2014);
    * transposed convolution: groups, positions of the input, output channels of a group times taps, input
      channels of a group;
    * linear and matmul: products, rows, columns, contracted length;
    * attention: samples times heads, queries, keys, width of a head (the product of queries and keys);
    * recurrent: layers times directions, samples, gates times hidden width, hidden width (the product of one
      step).

    Attributes:
        steps: what runs one after another: time steps of a recurrent layer; samples times channels of a
            resize that interpolates, which every thread of torch's kernels goes through.
        kernel_depth, kernel_height, kernel_width: taps of a convolution or pooling window.
        stride_height, stride_width, dilation, groups: of a convolution or pooling window; groups also of a
            group norm, and of norms and activations that go through one channel at a time (in-place ABN):
            their channels.
        input_channels, output_channels: of a convolution, pooling, resize or batch/group norm; features of a
            recurrent layer's input and output.
        input_depth, input_height, input_width: spatial size that the same operators read.
        heads, query_length, key_length, head_width: of attention.
        reduction_size, reduction_count: number of elements that share one statistic (norm, softmax,
            reduction, pooling window, classes of a loss), and number of such groups.
        table_rows, table_width: of an embedding.
    """

    gemm_batch: int = 0
    gemm_m: int = 0
    gemm_n: int = 0
    gemm_k: int = 0
    steps: int = 0
    kernel_depth: int = 0
    kernel_height: int = 0
    kernel_width: int = 0
    stride_height: int = 0
    stride_width: int = 0
    dilation: int = 0
    groups: int = 0
    input_channels: int = 0
    output_channels: int = 0
    input_depth: int = 0
    input_height: int = 0
    input_width: int = 0
    heads: int = 0
    query_length: int = 0
    key_length: int = 0
    head_width: int = 0
    reduction_size: int = 0
    reduction_count: int = 0
    table_rows: int = 0
    table_width: int = 0


SIZE_COLUMNS: tuple[str, ...] = tuple(f.name for f in fields(OperatorSizes))
RECOMPUTED_COLUMNS = ("recomputed_flops", "recomputed_kernels")
"""Columns of operators in checkpointed blocks, which run forward again in the backward pass; absent if all are 0."""
NO_SIZES = OperatorSizes()


def window_sizes(
    spatial: tuple[int, ...],
    channels: tuple[int, int],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: int = 1,
    groups: int = 1,
) -> dict[str, int]:
    """Fields common to convolution and pooling windows.

    Args:
        spatial: of the input, 1 to 3 dimensions, the width last.
        channels: of input and output.
        kernel, stride: per spatial dimension; a single number applies to all.
        dilation, groups: of the window.
    """
    rank = len(spatial)
    kernel = kernel * rank if len(kernel) == 1 else kernel
    stride = stride * rank if len(stride) == 1 else stride
    depth, height, width = (1,) * (3 - rank) + tuple(spatial)
    taps = (1,) * (3 - rank) + tuple(kernel)
    steps = (1,) * (3 - rank) + tuple(stride)
    return {
        "kernel_depth": taps[0],
        "kernel_height": taps[1],
        "kernel_width": taps[2],
        "stride_height": steps[1],
        "stride_width": steps[2],
        "dilation": dilation,
        "groups": groups,
        "input_channels": channels[0],
        "output_channels": channels[1],
        "input_depth": depth,
        "input_height": height,
        "input_width": width,
    }
