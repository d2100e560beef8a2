"""Modules and losses whose control flow reads values of tensors."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

from profiling.capture import capture_module
from profiling.errors import InputError
from profiling.workload import Workload

LABELS = torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: F.gaussian_nll_loss(out, torch.zeros_like(out), out.exp()),
        lambda out: F.multi_margin_loss(out, LABELS.to(out.device)),
        lambda out: F.multilabel_margin_loss(out, LABELS.to(out.device)[:, None].expand(3, 5)),
        lambda out: F.cosine_embedding_loss(out, out.flip(0), torch.ones(3)),
        lambda out: (
            -Normal(out, out.exp()).rsample().mean()
            + kl_divergence(Normal(out, out.exp()), Normal(0.0, 1.0)).mean()
        ),
        lambda out: -Categorical(logits=out).log_prob(Categorical(logits=out).sample()).mean(),
    ],
    ids=["gaussian", "margin", "multilabel-margin", "cosine", "normal", "categorical"],
)
def test_losses_that_check_or_make_values(loss: Callable[[Tensor], Tensor]) -> None:
    assert capture_module(nn.Linear(8, 5), torch.randn(3, 8), loss=loss).gradient_bytes == 4 * (8 * 5 + 5)


class Averaged(nn.Module):
    """The mean of a sequence's outputs up to its length."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        is_inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        return (self.layer(x) * is_inside[..., None]).sum(1) / lengths[:, None]


def test_a_mask_may_compare_two_tensors() -> None:
    graph = capture_module(Averaged(), (torch.randn(4, 6, 8), torch.full((4,), 6)))
    assert graph.forward_flops == 2 * 4 * 6 * 8 * 8


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 16, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor | list[int]) -> Tensor:
        if isinstance(lengths, Tensor):
            lengths, steps = lengths.cpu(), int(lengths.max())
            x = x[:, :steps]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


@pytest.mark.parametrize("lengths", [[3, 6, 2, 5], torch.tensor([3, 6, 2, 5])], ids=["list", "tensor"])
def test_packed_sequences_of_any_order(lengths: list[int] | Tensor) -> None:
    graph = capture_module(Packed(), (torch.randn(4, 9, 8), lengths))
    layer = next(op for op in graph.operators if op.kind == "recurrent")
    assert layer.forward_flops == 2 * 16 * 3 * 16 * (8 + 16)  # 16 positions
    assert any(op.output_shape == (4, 6, 16) for op in graph.operators)


def test_lengths_need_not_be_moved_to_the_cpu() -> None:
    """As torch wants them there, a collate function leaves them there."""

    class Unmoved(Packed):
        def forward(self, x: Tensor, lengths: Tensor | list[int]) -> Tensor:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]

    graph = capture_module(Unmoved(), (torch.randn(4, 9, 8), torch.tensor([3, 6, 2, 5])))
    assert graph.forward_flops == 2 * 16 * 3 * 16 * (8 + 16)


class Reentrant(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=True)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_of_inputs_are_computed_if_asked_for(precision: str) -> None:
    layers, x = (nn.Linear(16, 64), nn.Linear(64, 16)), torch.randn(8, 16, requires_grad=True)
    options = Workload("net", precision=precision)
    graph = capture_module(nn.Sequential(*layers), x, workload=options)
    assert graph.backward_flops == 2 * graph.forward_flops == 2 * 2 * 8 * 2 * 16 * 64
    # Without it, nothing before a reentrant checkpoint could be trained.
    graph = capture_module(Reentrant(*layers), x, workload=options)
    assert graph.backward_flops == 3 * graph.forward_flops
    assert graph.gradient_bytes == graph.parameter_bytes


class Checked(nn.Module):
    """Looks for padding, as language models without a mask do."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.slow = nn.Embedding(10, 8), nn.Linear(8, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        out = self.table(tokens)
        return self.slow(out) if 3 in tokens[:, [-1, 0]] else out


def test_a_batch_has_no_padding() -> None:
    with pytest.warns(UserWarning, match=r"net: assumed not to be in the batch: 3 \(`in` of a tensor\)"):
        graph = capture_module(Checked(), torch.ones(4, 6, dtype=torch.long), name="net")
    assert not any(op.kind == "linear" for op in graph.operators)
    assert 1 in torch.ones(2)  # elsewhere, torch answers


class Finite(nn.Module):
    """Counts what is not a number, as quantised models do of their ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        assert out.isnan().sum() == 0
        return out


def test_nothing_is_not_a_number() -> None:
    assert capture_module(Finite(), torch.randn(4, 8)).forward_flops == 2 * 4 * 8 * 8


class Recognizer(nn.Module):
    """Checks and counts its labels before a CTC loss, as the speech models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if labels.max() >= 5:
            raise ValueError("a label is out of range")
        is_given = labels >= 0
        if is_given.sum(-1).max().item() > x.shape[1]:
            raise ValueError("too many labels")
        scores = self.layer(x).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((len(x),), x.shape[1])
        return F.ctc_loss(scores, labels.masked_select(is_given), lengths, is_given.sum(-1))


def test_labels_may_be_checked_counted_and_selected() -> None:
    x, labels = torch.randn(3, 9, 8), torch.tensor([[1, 2, -1], [3, -1, -1], [4, 1, 2]])
    graph = capture_module(Recognizer(), (x, labels), loss=lambda loss: loss)
    assert graph.forward_flops == 2 * 3 * 9 * 8 * 5
    with pytest.raises(InputError, match="a label is out of range"):
        capture_module(Recognizer(), (x, labels + 4), loss=lambda loss: loss)


class Asserting(nn.Linear):
    """Asserts on the host that numbers are finite."""

    def forward(self, x: Tensor) -> Tensor:
        torch._check_tensor_all_with(ValueError, x.isfinite(), lambda: "not finite")
        return super().forward(x)


def test_assertions_about_all_numbers_hold() -> None:
    assert capture_module(Asserting(8, 5), torch.randn(3, 8)).forward_flops == 2 * 3 * 8 * 5


class LayerDrop(nn.Module):
    """Drops layers at random (Fan et al. 2020), as wav2vec 2.0 and BART do."""

    def __init__(self, shift: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(40))
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        if self.shift:
            x = x + torch.arange(8)
        for layer in self.layers:
            if torch.rand([]) >= 0.1:
                x = layer(x)
        return x


@pytest.mark.parametrize("shift", [False, True], ids=["on the host", "on the default device"])
def test_a_step_drops_no_layers(shift: bool) -> None:
    graph = capture_module(LayerDrop(shift), torch.randn(3, 8))
    assert graph.gradient_bytes == 40 * 4 * (8 * 8 + 8)


class Noisy(nn.Linear):
    """Draws a number of which it wants a gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.rand((), requires_grad=True)


def test_a_number_drawn_may_require_a_gradient() -> None:
    assert capture_module(Noisy(8, 5), torch.randn(3, 8)).forward_flops == 2 * 3 * 8 * 5


class Masked(nn.Linear):
    """Makes a constant on the default device, which a GPU takes as an argument of `masked_fill`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(x[:, :1] > 0, torch.tensor(-1.0))


def test_a_constant_of_a_mask_may_be_on_the_host() -> None:
    assert capture_module(Masked(8, 5), torch.randn(3, 8)).forward_flops == 2 * 3 * 8 * 5


class Waiting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        while torch.rand(1) > 0.3:
            x = self.layer(x)
        return self.layer(x)


def test_a_loop_that_waits_for_a_random_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"random numbers without end: expected at most 1,000"):
        capture_module(Waiting(), torch.randn(4, 8))


@pytest.mark.parametrize("read", [bool, Tensor.item])
def test_masks_are_full_however_a_model_asks(read: Callable[[Tensor], bool]) -> None:
    class Asked(Checked):
        def forward(self, tokens: Tensor) -> Tensor:
            out = self.table(tokens)
            return out if read((tokens != 1).all()) else self.slow(out)

    graph = capture_module(Asked(), torch.ones(4, 6, dtype=torch.long))
    assert not any(op.kind == "linear" for op in graph.operators)
