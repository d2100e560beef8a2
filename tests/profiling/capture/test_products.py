"""Bilinear layers, distances and Fourier transforms, by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from profiling.capture import capture_module
from profiling.graph import Operator
from profiling.workload import Workload

ROWS, LEFT, RIGHT, OUT = 16, 64, 48, 32


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(LEFT, LEFT, bias=False)
        self.layer = nn.Bilinear(LEFT, RIGHT, OUT, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(self.inner(x), y)


class Fourier(nn.Module):
    def __init__(self, function: str, width: int, **options: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=False)
        self.function, self.options = function, options

    def forward(self, x: Tensor) -> Tensor:
        out = getattr(torch.fft, self.function)(self.inner(x), **self.options)
        return torch.view_as_real(out).sum()


def captured(model: nn.Module, *inputs: Tensor, static: bool = False) -> tuple[Operator, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an operator without a canonical kind
        graph = capture_module(model, inputs, workload=Workload("net"), static=static)
    assert graph.parameter_count == sum(p.numel() for p in model.parameters())
    return graph.operators


@pytest.mark.parametrize("static", [False, True])
def test_a_bilinear_layer_is_two_products_per_output(static: bool) -> None:
    op = captured(Bilinear(), torch.randn(ROWS, LEFT), torch.randn(ROWS, RIGHT), static=static)[1]
    assert (op.kind, op.parameter_bytes) == ("linear", 4 * OUT * LEFT * RIGHT)
    assert op.forward_flops == 2 * ROWS * OUT * LEFT * RIGHT + 2 * ROWS * OUT * RIGHT
    between = ROWS * OUT * RIGHT
    # The left input is read for every output, the right one, too.
    read = OUT * ROWS * (LEFT + RIGHT) + OUT * LEFT * RIGHT + between + 2 * ROWS * OUT
    assert op.bytes_read == 4 * read
    assert op.bytes_written == 4 * (between + 3 * ROWS * OUT)


def test_its_gradients_are_products_per_output_too() -> None:
    op = captured(Bilinear(), torch.randn(ROWS, LEFT), torch.randn(ROWS, RIGHT))[1]
    assert op.forward_kernel_count == 3 * OUT + 1
    assert op.kernel_count == 3 * (3 * OUT + 1)
    # Outer products are elementwise; what remains is a product of each gradient with the right side.
    assert op.backward_flops == 2 * (2 * ROWS * OUT * LEFT * RIGHT)


def test_flops_of_a_bilinear_layer_are_those_of_the_products_that_torch_runs() -> None:
    layer = nn.Bilinear(LEFT, RIGHT, OUT, bias=False)
    x, y = nn.Parameter(torch.randn(ROWS, LEFT)), nn.Parameter(torch.randn(ROWS, RIGHT))

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x, self.y, self.layer = x, y, layer

        def forward(self, _: Tensor) -> Tensor:
            return self.layer(self.x, self.y)

    with torch.profiler.profile(record_shapes=True) as profile:
        Both()(x).sum().backward()
    shapes = [event.input_shapes for event in profile.events() if event.name == "aten::bmm"]
    flops = sum(2 * math.prod(left) * right[2] for left, right in shapes)
    graph = capture_module(Both(), torch.randn(ROWS))
    assert graph.forward_flops + graph.backward_flops == flops > 0


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(
    ("function", "options", "flops", "passes"),
    [
        ("rfft", {}, 2.5 * 8 * 512 * 9, 1),
        ("fft2", {}, 5 * 8 * 512 * (9 + 3), 2),
        ("fft", {"dim": 0}, 2.5 * 8 * 512 * 3, 1),
    ],
)
def test_a_fourier_transform_counts_as_in_cufft(
    function: str, options: dict[str, int], flops: float, passes: int, static: bool
) -> None:
    op = captured(Fourier(function, 512, **options), torch.randn(8, 512), static=static)[1]
    assert (op.kind, op.dtype, op.forward_flops) == ("elementwise", "complex64", pytest.approx(flops))
    if not static:
        assert op.forward_kernel_count == passes


def test_a_long_transform_takes_more_passes() -> None:
    short, long = (captured(Fourier("rfft", width), torch.randn(2, width))[1] for width in (4096, 16384))
    assert (short.forward_kernel_count, long.forward_kernel_count) == (1, 2)
    assert short.bytes_read == 4 * 2 * 4096
    assert long.bytes_read == 4 * 2 * 16384 + 8 * 2 * 8193
    assert long.forward_flops / short.forward_flops == pytest.approx(4 * math.log2(16384) / math.log2(4096))


class Masked(nn.Module):
    """Weighs a signal's frequencies, as separation and vocoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.ones(33, 1))

    def forward(self, x: Tensor) -> Tensor:
        window = torch.hann_window(64, device=x.device)
        spectrum = torch.stft(x, 64, 16, window=window, return_complex=True)
        return torch.istft(spectrum * self.gains, 64, 16, window=window, length=x.shape[-1])


def test_a_signal_is_put_together_from_its_windows() -> None:
    """`istft` asks whether they overlap everywhere."""
    graph = capture_module(Masked(), torch.randn(2, 640))
    frames = 2 * (640 // 16 + 1)
    assert graph.forward_flops == 2 * frames * 2.5 * 64 * math.log2(64)  # there and back
    assert graph.gradient_bytes == 4 * 33


class ComplexProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(LEFT, OUT, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.cfloat) @ self.weight).abs()


@pytest.mark.parametrize("static", [False, True])
def test_a_complex_product_is_four_real_ones(static: bool) -> None:
    graph = capture_module(ComplexProduct(), torch.zeros(ROWS, LEFT), static=static)
    flops = {op.forward_flops for op in graph.operators if op.kind in ("linear", "matmul")}
    assert flops == {4 * 2 * ROWS * LEFT * OUT}


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.codes = nn.Linear(LEFT, LEFT, bias=False), nn.Embedding(OUT, LEFT)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(self.layer(x), self.codes.weight)


@pytest.mark.parametrize("static", [False, True])
def test_distances_are_a_product(static: bool) -> None:
    rows = 128
    op = capture_module(Codebook(), torch.randn(rows, LEFT), static=static).operators[1]
    assert (op.kind, op.forward_flops) == ("linear", 2 * rows * OUT * (LEFT + 2))
    assert (op.sizes.gemm_m, op.sizes.gemm_n, op.sizes.gemm_k) == (rows, OUT, LEFT)
    assert op.backward_flops == 2 * 2 * rows * OUT * (LEFT + 2 * static)


MEMORY, WIDTH = 10_000, 16
WRITES: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "index_put_": lambda memory, x, at: memory.index_put_((at,), x),
    "index_put_ accumulate": lambda memory, x, at: memory.index_put_((at,), x, accumulate=True),
    "index_add_": lambda memory, x, at: memory.index_add_(0, at, x),
    "index_copy_": lambda memory, x, at: memory.index_copy_(-2, at, x),
    "scatter_": lambda memory, x, at: memory.scatter_(0, at[:, None].expand_as(x), x),
    "scatter_add_": lambda memory, x, at: memory.scatter_add_(0, at[:, None].expand_as(x), x),
}


class Memory(nn.Module):
    """A large buffer of which a step writes a few rows."""

    def __init__(self, write: Callable[[Tensor, Tensor, Tensor], object]) -> None:
        super().__init__()
        self.layer, self.write = nn.Linear(WIDTH, WIDTH), write
        self.register_buffer("memory", torch.zeros(MEMORY, WIDTH))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        out = self.layer(x)
        memory = self.memory.detach()
        self.write(memory, out.detach(), at)
        return out.sum() + memory[at].sum()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_writing_a_few_rows_in_place_costs_these_rows(name: str, static: bool) -> None:
    inputs = (torch.randn(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.long))
    graph = capture_module(Memory(WRITES[name]), inputs, static=static)
    rows = 4.0 * ROWS * WIDTH
    written = graph.operators[1]
    assert (written.kind, written.bytes_written) == ("gather", rows)
    # The rows to write, at most with those that they are added to, and the indices, which a scatter has for every element.
    assert rows < written.bytes_read <= 2 * rows + 8 * ROWS * WIDTH


class Solved(nn.Module):
    """A chunk of the gated delta rule (Yang et al. 2025)."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(RIGHT, RIGHT, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        values = self.inner(x)
        scores = (values @ values.mT).tril(-1)
        return torch.linalg.solve_triangular(scores, values, upper=False, unitriangular=True)


def test_a_triangular_solve_multiplies_by_half_a_matrix() -> None:
    operators = captured(Solved(), torch.randn(OUT, ROWS, RIGHT))
    (op,) = (
        op
        for op in operators
        if "solve" in op.name or (op.kind == "matmul" and op.forward_flops == OUT * ROWS * ROWS * RIGHT)
    )
    assert op.kind == "matmul"
    assert op.forward_flops == OUT * ROWS * ROWS * RIGHT
    # The right side's gradient is another solve, and the matrix's a product.
    assert op.backward_flops == OUT * ROWS * ROWS * RIGHT * (1 + 2)
    assert (op.sizes.gemm_batch, op.sizes.gemm_m) == (OUT, ROWS)
    assert (op.sizes.gemm_n, op.sizes.gemm_k) == (RIGHT, ROWS)
