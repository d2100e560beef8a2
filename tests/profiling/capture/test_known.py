"""Sizes and decisions that a model computes from whole numbers among its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.capture import capture_module
from profiling.errors import InputError
from profiling.workload import Workload


class Packed(nn.Module):
    """Attends within each image of a packed sequence, and puts the results among tokens, as Qwen-VL does."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.tokens = nn.Linear(12, 16), nn.Embedding(100, 16)

    def forward(self, tokens: Tensor, patches: Tensor, grid: Tensor) -> Tensor:
        lengths = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        ends = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        places = torch.cat([torch.arange(h * w, device=grid.device) for _, h, w in grid.tolist()])
        assert len(places) == len(patches) == len(torch.arange(lengths.sum(), device=grid.device))
        parts = self.patches(patches).split((ends[1:] - ends[:-1]).tolist())
        seen = torch.cat([F.softmax(part @ part.t(), -1) @ part for part in parts])
        is_image = tokens.to(patches.device) == 7
        if int(torch.unique_consecutive(is_image.sum(1)).numel()) != 1:
            raise ValueError("samples have different numbers of image tokens")
        out = self.tokens(tokens).clone()
        out[is_image, :] = out[is_image, :] + seen
        return out[is_image].sum() + out.masked_select(is_image[..., None]).sum()


def inputs(image_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.zeros(2, 40, dtype=torch.long)
    tokens[:, :image_tokens] = 7
    return tokens, torch.randn(32, 12), torch.tensor([[1, 4, 4], [1, 2, 8]])


@pytest.mark.parametrize("precision", ["fp32", "amp", "bf16"])
def test_images_are_as_large_as_their_grid_says(precision: str) -> None:
    options = Workload("net", precision=precision)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is assumed
        graph = capture_module(Packed(), inputs(16), loss=lambda out: out, workload=options)
    products = 2 * 32 * 12 * 16 + 2 * 2 * (2 * 16 * 16 * 16)
    assert graph.forward_flops == products


def test_other_shapes_than_the_values_say_are_an_error() -> None:
    with pytest.raises(InputError):
        capture_module(Packed(), inputs(15), loss=lambda out: out)


class Marked(nn.Module):
    """Reads out the positions of a mark."""

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(100, 16), nn.Linear(16, 4)
        self.in_place = in_place

    def forward(self, tokens: Tensor) -> Tensor:
        if self.in_place:
            tokens.remainder_(90)
        return self.head(self.table(tokens)[tokens == 5])


@pytest.mark.parametrize(
    ("marks", "in_place", "rows"),
    [(3, False, 3), (0, False, 24), (3, True, 3)],
    ids=["marked", "placeholders", "changed"],
)
def test_a_mask_selects_what_is_known_of_it_or_else_everything(marks: int, in_place: bool, rows: int) -> None:
    tokens = torch.zeros(4, 6, dtype=torch.long)
    tokens[:marks, 0] = 5
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = capture_module(Marked(in_place), tokens)
    assert graph.forward_flops == 2 * rows * 16 * 4
    assert any("assumed to select everything" in str(w.message) for w in caught) == (rows == 24)


class ByType(nn.Module):
    """A layer for each type of rows sorted by type, as in heterogeneous graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, size) for size in (4, 16))

    def forward(self, x: Tensor, types: Tensor) -> Tensor:
        ends = torch.searchsorted(types, torch.arange(3, device=x.device))
        rows = [
            layer(x[start:end]).view(end - start, -1, 4).sum(1)
            for layer, start, end in zip(self.layers, ends[:-1], ends[1:], strict=True)
        ]
        return torch.cat(rows) + torch.zeros(ends[-1], 4, device=x.device)


def test_slices_and_sizes_may_be_tensors() -> None:
    graph = capture_module(ByType(), (torch.randn(6, 8), torch.tensor([0, 0, 0, 0, 1, 1])))
    assert graph.forward_flops == 2 * 8 * (4 * 4 + 2 * 16)


def raised(lengths: Tensor) -> Tensor:
    lengths = lengths.clone()
    torch._foreach_add_([lengths], 1)
    return lengths


@pytest.mark.parametrize(
    "changed",
    [lambda lengths: torch.randint_like(lengths, 1, 4), lambda lengths: lengths.new(2), raised],
    ids=["random", "not set", "changed in a list"],
)
def test_values_of_random_and_changed_numbers_are_unknown(changed: Callable[[Tensor], Tensor]) -> None:
    class Shuffled(nn.Linear):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return super().forward(x)[: int(changed(lengths).max())]

    with pytest.raises(InputError, match="reads values"):
        capture_module(Shuffled(8, 8), (torch.randn(4, 8), torch.tensor([2, 3])))


def test_whole_numbers_of_inference_mode_are_unknown() -> None:
    class Frozen(nn.Linear):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            with torch.inference_mode():
                features = super().forward(x)[:, torch.arange(8, device=x.device)] * (lengths + 1)[:, None]
            return super().forward(features.clone())

    graph = capture_module(Frozen(8, 8), (torch.randn(2, 8), torch.tensor([2, 3])))
    assert graph.forward_flops == 2 * (2 * 2 * 8 * 8)


def test_an_input_stays_given_when_a_function_returns_it() -> None:
    class Looking(nn.Linear):
        def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
            tokens = tokens.to(x.device).long().contiguous()
            return super().forward(x) if 5 in tokens else x + self.weight.sum()

    graph = capture_module(Looking(8, 8), (torch.randn(2, 8), torch.tensor([5, 3])))
    assert graph.forward_flops == 2 * 2 * 8 * 8


@pytest.mark.parametrize(
    "repeated",
    [
        lambda x, times: x.repeat_interleave(times, 0),
        lambda x, times: x.repeat_interleave(repeats=times, dim=0),
        lambda x, times: torch.repeat_interleave(input=x, repeats=times, dim=0),
        lambda x, times: x[torch.repeat_interleave(times) // 4].repeat(4, 1),
        lambda x, times: x[torch.repeat_interleave(repeats=times) // 4].repeat(4, 1),
    ],
    ids=["positions", "keywords", "all keywords", "repeats alone", "repeats alone as keyword"],
)
def test_one_number_repeats_every_row(repeated: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Repeating(nn.Linear):
        def forward(self, x: Tensor, times: Tensor) -> Tensor:
            return super().forward(repeated(x, times))

    graph = capture_module(Repeating(8, 8), (torch.randn(4, 8), torch.tensor([3])))
    assert graph.forward_flops == 2 * (3 * 4) * 8 * 8


@pytest.mark.parametrize(
    "rows",
    [
        lambda x, mask: x[mask],
        lambda x, mask: x[torch.where(mask)],
        lambda x, mask: x[torch.where(condition=mask)[0]],
        lambda x, mask: x[mask.nonzero(as_tuple=True)],
        lambda x, mask: torch.masked_select(input=x, mask=mask[:, None]).view(-1, 8),
    ],
    ids=["index", "where", "where by keyword", "nonzero", "masked_select by keyword"],
)
def test_all_ways_to_select_know_the_mask(rows: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Selecting(nn.Linear):
        def forward(self, x: Tensor, types: Tensor) -> Tensor:
            return super().forward(rows(x, types == 1))

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is assumed
        graph = capture_module(Selecting(8, 8), (torch.randn(4, 8), torch.tensor([0, 1, 0, 1])))
    assert graph.forward_flops == 2 * 2 * 8 * 8


def test_inputs_that_a_step_changes_are_known_until_then() -> None:
    class Counting(nn.Linear):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            longest = int(lengths.max())
            x = x + torch.ones(8)  # on another device at the first attempt
            lengths.clamp_(max=2)
            return super().forward(x[:longest])

    graph = capture_module(Counting(8, 8), (torch.randn(4, 8), torch.tensor([2, 3])))
    assert graph.forward_flops == 2 * 3 * 8 * 8
    assert graph.forward_activation_bytes > 0


@pytest.mark.parametrize("read", [int, float, Tensor.item], ids=["int", "float", "item"])
def test_known_numbers_are_read_as_any_type(read: Callable[[Tensor], float]) -> None:
    class Scaled(nn.Linear):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return super().forward(x[: round(read(lengths.sum()) / 2)])

    graph = capture_module(Scaled(8, 8), (torch.randn(4, 8), torch.tensor([2, 4])))
    assert graph.forward_flops == 2 * 3 * 8 * 8


class Longest(nn.Linear):
    """Applied to as many rows as the longest length says."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__(8, 8)
        self.change = change

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        lengths = lengths.clone()
        self.change(lengths)
        return super().forward(x[: int(lengths.max())])


@pytest.mark.parametrize(
    ("change", "longest"),
    [
        (lambda lengths: lengths.add_(1), 4),
        (lambda lengths: lengths.__setitem__(0, 6), 6),
        (lambda lengths: lengths.scatter_add_(0, torch.zeros_like(lengths), lengths), 7),
        (lambda lengths: lengths.data.add_(1), 4),
        (lambda lengths: setattr(lengths, "data", lengths + 1), 4),
    ],
    ids=["add", "set", "scatter", "add to data", "set data"],
)
def test_values_changed_in_place_are_known(change: Callable[[Tensor], object], longest: int) -> None:
    """At every pass of a capture from those that were given."""
    graph = capture_module(Longest(change), (torch.randn(8, 8), torch.tensor([2, 3])))
    assert graph.forward_flops == 2 * longest * 8 * 8


@pytest.mark.parametrize(
    "change",
    [
        lambda lengths: setattr(lengths, "data", torch.randint_like(lengths, 1, 4)),
        lambda lengths: lengths.data.random_(1, 4),
        lambda lengths: lengths[:1].add_(1),
    ],
    ids=["set data", "draw data", "view"],
)
def test_values_changed_to_unknown_ones_are_unknown(change: Callable[[Tensor], object]) -> None:
    with pytest.raises(InputError, match="reads values"):
        capture_module(Longest(change), (torch.randn(8, 8), torch.tensor([2, 3])))


def test_values_that_the_input_itself_gets_are_forgotten_with_the_pass() -> None:
    class Growing(nn.Linear):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            lengths += 1
            return super().forward(x[: int(lengths.max())])

    graph = capture_module(Growing(8, 8), (torch.randn(8, 8), torch.tensor([2, 3])))
    assert graph.forward_flops == 2 * 4 * 8 * 8


def test_relations_are_counted_as_in_the_batch() -> None:
    """R-GCN counts the edges of each relation by adding ones in place, then selects them."""
    from torch_geometric.nn import RGCNConv

    edges, relations = torch.randint(0, 6, (2, 10)), torch.tensor([0, 1, 1, 0, 1, 1, 1, 0, 1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is assumed
        graph = capture_module(RGCNConv(8, 8, 2), (torch.randn(6, 8), edges, relations))
    assert graph.forward_flops == 3 * 2 * 6 * 8 * 8  # both relations' and the root's
