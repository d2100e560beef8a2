"""Operators that a GPU runs fused but `meta` would decompose: attention, RMS norms, recurrent layers, the CTC loss.

They are custom operators without an implementation, which define only output shapes, tensors saved for the backward
pass, and FLOPs. A recording then shows one operator where cuDNN or a flash kernel runs one.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _no_kernel() -> RuntimeError:
    return RuntimeError("operators of the cotenant namespace exist on meta tensors only")


@torch.library.custom_op("cotenant::attention", mutates_args=())
def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, share: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention on (batch, heads, length, width); also returns the log-sum-exp of each row.

    Args:
        share: of the scores that are computed; a block mask leaves out the others.
    """
    raise _no_kernel()


@attention.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, share: float = 1.0
) -> tuple[Tensor, Tensor]:
    is_flash = _runs_flash(query, value, bias)
    out = _laid_out_as(query) if is_flash else _heads_inside(query, value.shape[-1])
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _runs_flash(query: Tensor, value: Tensor, bias: Tensor | None) -> bool:
    """Whether a flash kernel runs, which knows half precision only, and no bias; else, one that is memory-efficient."""
    return bias is None and query.element_size() == 2 and query.shape[-1] == value.shape[-1]


def _laid_out_as(like: Tensor) -> Tensor:
    """(batch, heads, length, width) in the order of `like` in memory, as flash kernels write (`mha_fwd`, `mha_bwd`)."""
    return torch.empty_like(like.transpose(1, 2)).transpose(1, 2)


def _heads_inside(like: Tensor, width: int) -> Tensor:
    """(batch, heads, length, `width`) as memory-efficient kernels write it: all heads of a token together.

    So joining the heads takes no copy.
    """
    batch, heads, length, _ = like.shape
    return like.new_empty((batch, length, heads, width)).transpose(1, 2)


@torch.library.custom_op("cotenant::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sum: Tensor,
    bias: Tensor | None = None,
    share: float = 1.0,
) -> list[Tensor]:
    """Gradients of query, key and value, and of the bias if there is one."""
    raise _no_kernel()


@attention_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sum: Tensor,
    bias: Tensor | None = None,
    share: float = 1.0,
) -> list[Tensor]:
    is_flash = _runs_flash(query, value, bias)
    gradients = [_laid_out_as(t) if is_flash else _heads_inside(t, t.shape[-1]) for t in (query, key, value)]
    return gradients if bias is None else [*gradients, bias.new_empty(bias.shape)]


def _attention_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.set_materialize_grads(False)  # no zeros for the log-sum-exp, whose gradient nobody asks for
    query, key, value, bias, ctx.share = inputs
    trained_bias = [bias] if ctx.needs_input_grad[3] else []
    ctx.save_for_backward(query, key, value, *output, *trained_bias)


def _attention_backward(ctx, grad, _log_sum_grad):  # type: ignore[no-untyped-def]
    query, key, value, out, log_sum, *bias = ctx.saved_tensors
    bias = bias[0] if bias else None
    grad = torch.empty_like(out) if grad is None else grad  # a model may use the log-sum-exp alone
    gradients = attention_backward(grad, query, key, value, out, log_sum, bias, ctx.share)
    return *gradients, *[None] * (5 - len(gradients))


attention.register_autograd(_attention_backward, setup_context=_attention_setup)


def attention_flops(query: torch.Size, key: torch.Size, value: torch.Size) -> tuple[int, int]:
    """Forward and backward FLOPs of attention: two products forward, and five backward.

    The fifth recomputes the scores, as flash kernels do; `torch.utils.flop_counter` counts it too.
    """
    rows = query[:-2].numel() * query[-2]
    scores = 2 * rows * key[-2] * query[-1]
    weighted = 2 * rows * key[-2] * value[-1]
    return scores + weighted, 3 * scores + 2 * weighted


@torch.library.custom_op("cotenant::rms_norm", mutates_args=())
def rms_norm(input: Tensor, normalized_shape: list[int], weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Root mean square norm over the last dimensions; also returns the reciprocal root of each row."""
    raise _no_kernel()


@rms_norm.register_fake
def _(input: Tensor, normalized_shape: list[int], weight: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = input.shape[: input.dim() - len(normalized_shape)]
    return input.new_empty(input.shape), input.new_empty(
        (*rows, *[1] * len(normalized_shape)), dtype=torch.float32
    )


@torch.library.custom_op("cotenant::rms_norm_backward", mutates_args=())
def rms_norm_backward(grad: Tensor, input: Tensor, reciprocal: Tensor, weight: Tensor | None) -> list[Tensor]:
    """Gradients of the input, and of the weight if there is one."""
    raise _no_kernel()


@rms_norm_backward.register_fake
def _(grad: Tensor, input: Tensor, reciprocal: Tensor, weight: Tensor | None) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (input, weight) if t is not None]


def _rms_norm_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.set_materialize_grads(False)  # no zeros for the root, whose gradient nobody asks for
    ctx.save_for_backward(inputs[0], output[1], inputs[2])


def _rms_norm_backward(ctx, grad, _reciprocal_grad):  # type: ignore[no-untyped-def]
    gradients = rms_norm_backward(grad, *ctx.saved_tensors)
    return gradients[0], None, gradients[1] if len(gradients) > 1 else None


rms_norm.register_autograd(_rms_norm_backward, setup_context=_rms_norm_setup)


@torch.library.custom_op("cotenant::recurrent", mutates_args=())
def recurrent(
    sequence: Tensor,
    state: list[Tensor],
    weights: list[Tensor],
    gates: int,
    layers: int,
    bidirectional: bool,
    training: bool,
    cell: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A multi-layer LSTM (4 gates), GRU (3) or plain RNN (1).

    Args:
        sequence: (time, batch, features) or (batch, time, features); (total, features) if packed.
        cell: whether it is one step of a cell, which torch runs as two products and a pointwise kernel, instead of a
            call of cuDNN.

    Returns:
        Outputs, last hidden state, last cell state (empty if there is none), and what the backward pass needs.
    """
    raise _no_kernel()


@recurrent.register_fake
def _(
    sequence: Tensor,
    state: list[Tensor],
    weights: list[Tensor],
    gates: int,
    layers: int,
    bidirectional: bool,
    training: bool,
    cell: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    directions = 2 if bidirectional else 1
    hidden = state[0].shape[-1]
    out = sequence.new_empty((*sequence.shape[:-1], directions * hidden))
    rows = sequence.shape[:-1].numel()
    # Per position: the gates, the cell state and the hidden state of every layer and direction; if the latter is
    # projected (`proj_size`), before and after.
    width = state[1].shape[-1] if len(state) > 1 else hidden
    kept = width * (gates + (2 if gates == 4 else 1)) + (hidden if width != hidden else 0)
    if cell:
        # Both products and a workspace (`_thnn_fused_lstm_cell`, `_thnn_fused_gru_cell`).
        kept = width * (3 * gates if gates == 4 else 2 * gates + 5)
    reserve = rows * directions * layers * kept if training else 0
    last = state[1] if len(state) > 1 else state[0].new_empty(0)
    return out, state[0].new_empty(state[0].shape), last.new_empty(last.shape), sequence.new_empty(reserve)


@torch.library.custom_op("cotenant::recurrent_backward", mutates_args=())
def recurrent_backward(
    grad: Tensor,
    sequence: Tensor,
    weights: list[Tensor],
    out: Tensor,
    reserve: Tensor,
    products: list[int],
    trained: list[bool],
) -> list[Tensor]:
    """Gradients of the sequence, then of each weight; empty if none is computed.

    Args:
        out: outputs, or of a cell its hidden state.
        products: gradients that each weight is a factor of, or that are its own: 0 to 2.
        trained: whether the gradient of each weight is computed.
    """
    raise _no_kernel()


@recurrent_backward.register_fake
def _(
    grad: Tensor,
    sequence: Tensor,
    weights: list[Tensor],
    out: Tensor,
    reserve: Tensor,
    products: list[int],
    trained: list[bool],
) -> list[Tensor]:
    own = (w.new_empty(w.shape if own else 0) for w, own in zip(weights, trained, strict=True))
    return [sequence.new_empty(sequence.shape), *own]


def _recurrent_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    sequence, state, weights = inputs[0], inputs[1], inputs[2]
    trained = [w.requires_grad for w in weights]
    if inputs[7]:  # weights of the input, then of the state, then biases
        data = [sequence.requires_grad, state[0].requires_grad, *[False] * (len(weights) - 2)]
        kept = [*state, output[2]]  # an LSTM's new cell state; the output is kept by what reads it
    else:
        # cuDNN computes the gradients of all data, and those of all weights or of none (`_cudnn_rnn_backward`).
        data, trained = [True] * len(weights), [any(trained)] * len(weights)
        # Of the first states, those that an earlier call has computed; others are small beside the sequence.
        kept = [output[0], *(s for s in state if s.requires_grad)]
    ctx.save_for_backward(sequence, output[3], *weights, *kept)
    ctx.out_shape, ctx.state_shapes = output[0].shape, [s.shape for s in state]
    ctx.products, ctx.trained = [d + t for d, t in zip(data, trained, strict=True)], trained


def _recurrent_backward(ctx, grad, *_rest):  # type: ignore[no-untyped-def]
    sequence, reserve, *rest = ctx.saved_tensors
    weights, read = rest[: len(ctx.trained)], rest[len(ctx.trained)]
    if grad is None:
        grad = sequence.new_empty(ctx.out_shape)
    gradients = recurrent_backward(grad, sequence, weights, read, reserve, ctx.products, ctx.trained)
    wanted = [g if w.requires_grad else None for g, w in zip(gradients[1:], weights, strict=True)]
    state = [grad.new_empty(shape) for shape in ctx.state_shapes]
    return gradients[0], state, wanted, None, None, None, None, None


recurrent.register_autograd(_recurrent_backward, setup_context=_recurrent_setup)


def recurrent_flops(rows: int, weights: list[torch.Size], products: list[int] | None = None) -> int:
    """FLOPs with every weight matrix applied to `rows` positions in that many products, by default one."""
    times = products or [1] * len(weights)
    return sum(
        2 * rows * n * shape.numel() for n, shape in zip(times, weights, strict=True) if len(shape) == 2
    )


@torch.library.custom_op("cotenant::ctc_loss", mutates_args=())
def ctc_loss(log_probability: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Connectionist temporal classification: (time, batch, characters) against (batch, letters) or (all letters).

    Returns:
        Mean loss, and forward variables (batch, time, 2 * letters + 1).
    """
    raise _no_kernel()


@ctc_loss.register_fake
def _(log_probability: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    time, batch, _ = log_probability.shape
    letters = targets.shape[1] if targets.dim() > 1 else -(-targets.shape[0] // max(1, batch))
    return log_probability.new_empty(()), log_probability.new_empty((batch, time, 2 * letters + 1))


@torch.library.custom_op("cotenant::ctc_loss_backward", mutates_args=())
def ctc_loss_backward(grad: Tensor, log_probability: Tensor, targets: Tensor, alpha: Tensor) -> Tensor:
    """Gradient of the log-probabilities."""
    raise _no_kernel()


@ctc_loss_backward.register_fake
def _(grad: Tensor, log_probability: Tensor, targets: Tensor, alpha: Tensor) -> Tensor:
    return log_probability.new_empty(log_probability.shape)


def _ctc_setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs, output[1])


def _ctc_backward(ctx, grad, _alpha_grad):  # type: ignore[no-untyped-def]
    return ctc_loss_backward(grad, *ctx.saved_tensors), None


ctc_loss.register_autograd(_ctc_backward, setup_context=_ctc_setup)


# torch has no shape rules for the gradients of these losses.
@torch.library.register_fake("aten::multi_margin_loss_backward")
def _(grad, log, target, p, margin, weight=None, reduction=1):  # type: ignore[no-untyped-def]
    return log.new_empty(log.shape)


@torch.library.register_fake("aten::multilabel_margin_loss_backward")
def _(grad, log, target, reduction, is_target):  # type: ignore[no-untyped-def]
    return log.new_empty(log.shape)


# Nor for equal values. torch itself asks whether a check has found an error, as `istft` of windows without overlap.
@torch.library.register_fake("aten::equal")
def _(self, other):  # type: ignore[no-untyped-def]
    if self.dim() or self.dtype != torch.bool:
        raise RuntimeError("equal cannot be called on meta tensors")
    return False
