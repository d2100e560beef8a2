"""Emulates what a GPU build of torch does above the dispatcher, but not for `meta` tensors: fused calls, autocast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, _meta_registrations
from torch._prims_common import suggest_memory_format
from torch.nn.utils import rnn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdRef

from profiling.capture import fused
from profiling.capture.answers import contains, note, read, truth_of
from profiling.capture.autocast import TO_FLOAT, TO_HALF, TO_WIDEST, autocast_regions, lower_type
from profiling.capture.flex import flex_functions
from profiling.capture.known import changed, compute, decide, remember, selected, with_values
from profiling.capture.patching import patched
from profiling.errors import InputError
from profiling.training import tensors_of

_MOST_DRAWS = 1_000
_CELLS = {"lstm_cell": 4, "gru_cell": 3}
_PLAIN_CELLS = {"rnn_tanh_cell": torch.tanh, "rnn_relu_cell": torch.relu}
_RECURRENT = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


class DeviceFunctions(TorchFunctionMode):
    """Replaces attention, norms, recurrent layers and dropout by fused operators, and casts as autocast would.

    Attributes:
        absent: what was asked for with `in` among unknown values, and is assumed not to be there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.absent: set[str] = set()
        self._draws = 0
        self._weights: dict[tuple[WeakIdRef, torch.dtype], Tensor] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if (lower := lower_type()) is not None:
            if name in TO_HALF:
                args, kwargs = self._cast((args, kwargs), lower)
            elif name in TO_FLOAT or (name in TO_WIDEST and _has_float32((args, kwargs))):
                args, kwargs = self._cast((args, kwargs), torch.float32)
        if name == "__bool__" and (answer := truth_of(args[0])) is not None:
            return answer
        if (values := read(name, args)) is not None:
            return values
        if name == "scaled_dot_product_attention" and _has_fused_kernel(*args, **kwargs):
            return _attention(*args, **kwargs)
        if name == "rms_norm" and _is_fused_norm(*args, **kwargs):
            return _rms_norm(*args, **kwargs)
        if name == "batch_norm":
            args, kwargs = _batch_norm_inputs(*args, **kwargs)
        if name in _RECURRENT and isinstance(args[0], Tensor) and args[0].is_meta:
            return _recurrent(name, args)
        if name in _CELLS and isinstance(args[0], Tensor) and args[0].is_meta:
            return _cell(_CELLS[name], *args)
        if name in _PLAIN_CELLS and isinstance(args[0], Tensor) and args[0].is_meta:
            return _plain_cell(name, *args)
        if name == "ctc_loss" and isinstance(args[0], Tensor) and args[0].is_meta:
            return fused.ctc_loss(args[0], args[1])[0]
        if name == "masked_select" and any(t.is_meta for t in tensors_of((args, kwargs))):
            # As a GPU computes it. Torch has no rule for its size.
            with self:
                return _masked_select(*args, **kwargs)
        if name == "dropout" and len(args) >= 2 and isinstance(args[0], Tensor):
            training = args[2] if len(args) > 2 else kwargs.get("training", True)
            return torch.native_dropout(args[0], args[1], True)[0] if training and args[1] > 0 else args[0]
        args, kwargs = with_values(name, args, kwargs)
        if (out := selected(func, args, kwargs)) is not None:
            return out
        after = changed(func, args, kwargs)
        out = func(*args, **kwargs)
        if name == "rand":
            self._draws += 1
            if self._draws > _MOST_DRAWS:
                raise InputError(
                    "the step draws random numbers without end",
                    expected=f"at most {_MOST_DRAWS:,} calls of torch.rand",
                    got="more",
                    hint="at a capture, a number drawn on the host is 0.5: replace a loop that waits for another",
                )
            decide(out, is_on_host="device" not in kwargs)
        note(name, args, out)
        compute(func, args, kwargs, out, after)
        return out

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, Tensor):
            if not value.is_floating_point() or value.dtype in (dtype, torch.float64):
                return value
            # Autocast caches a cast weight for the whole forward pass; a view under `no_grad`, which is temporary,
            # is a leaf that requires a gradient, too.
            if not value.is_leaf or not value.requires_grad or value._is_view():
                return value.to(dtype)
            # The key is no number, as a weight made in the forward pass may get that of one that is gone.
            key = WeakIdRef(value), dtype
            if key not in self._weights:
                self._weights[key] = value.to(dtype)
            return self._weights[key]
        if isinstance(value, dict):
            return {key: self._cast(item, dtype) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._cast(item, dtype) for item in value)
        return value

    def forget(self) -> None:
        """Drop the cast weights, as leaving the autocast region does."""
        self._weights.clear()


@contextmanager
def fused_functions(autocast: torch.dtype | None = None) -> Iterator[DeviceFunctions]:
    """Run under `DeviceFunctions`, including calls made inside torch's own Python functions.

    A function mode is disabled while it handles a Python function such as `multi_head_attention_forward` or `backward`
    (which recomputes checkpointed blocks), so it would miss the calls inside. These functions are therefore patched
    to believe that no mode is active; they run undisturbed, and the mode sees the calls they make. Encoders in
    evaluation mode must not pack padded batches, whose size depends on the mask.
    """
    functional, autograd = torch.nn.functional, torch.autograd
    places = [
        (functional, "has_torch_function"),
        (functional, "has_torch_function_unary"),
        (functional, "has_torch_function_variadic"),
        (autograd, "has_torch_function"),
        (torch._tensor, "has_torch_function_unary"),
        (torch.backends.mha, "get_fastpath_enabled"),
    ]
    unpatched = rnn.invert_permutation

    def inverse(permutation: Tensor | None) -> Tensor | None:
        # `pad_packed_sequence` sorts the lengths back on the host, in an order that makes no difference to the shapes.
        order = unpatched(permutation)
        if order is not None and order.is_meta:
            remember(order, torch.arange(len(order), device="cpu"))
        return order

    of_bf16 = _meta_registrations._meta_grouped_mm_common

    def grouped(left: Tensor, right: Tensor, *, offs: Any, out_dtype: Any, **options: Any) -> Tensor:
        # torch's shape rule knows the kernel for BF16 only, and refuses what a GPU multiplies group by group.
        if left.dtype in (torch.float32, torch.float16):
            return _meta_registrations._create_grouped_mm_output_tensor(left, right, offs, out_dtype)
        return of_bf16(left, right, offs=offs, out_dtype=out_dtype, **options)

    search = Tensor.__contains__

    def contained(tensor: Tensor, element: Any) -> bool:
        if not tensor.is_meta or isinstance(element, Tensor):
            return bool(search(tensor, element))
        answer = contains(tensor, element)
        if answer is None:
            mode.absent.add(str(element))
        return bool(answer)

    undisturbed = patched(
        [
            *((module, name, lambda *_: False) for module, name in places),
            (rnn, "invert_permutation", inverse),
            (_meta_registrations, "_meta_grouped_mm_common", grouped),
            (Tensor, "__contains__", contained),
        ]
    )
    with undisturbed, flex_functions(), autocast_regions(autocast), DeviceFunctions() as mode:
        yield mode


def _has_float32(value: Any) -> bool:
    return any(tensor.dtype == torch.float32 for tensor in tensors_of(value))


def _has_fused_kernel(
    query: Tensor, key: Tensor, value: Tensor, *_rest: Any, enable_gqa: bool = False, **_options: Any
) -> bool:
    """Whether a GPU runs attention as one kernel: over four dimensions, the first two equal in all three tensors.

    Otherwise torch computes it in parts, and in FP32 if the inputs are in half precision: over more dimensions (the
    windows of NesT, Twins and Hiera), over fewer (ViT of SAM), or with keys that all heads share (MobileNetV4)
    (`check_tensor_shapes`, `check_batch_size_and_num_heads_dense` and `_scaled_dot_product_attention_math` in torch
    2.13).
    """
    shapes = [t.shape for t in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes):
        return False
    return enable_gqa or shapes[0][:2] == shapes[1][:2] == shapes[2][:2]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    # A causal kernel skips half of the scores, but torch.utils.flop_counter counts them all, so they count here too.
    if attn_mask is not None and attn_mask.requires_grad:
        # A kernel writes the gradient of a bias for every score; the backward pass of `expand` then sums it.
        attn_mask = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    return fused.attention(query, key, value, attn_mask)[0]


def _masked_select(input: Tensor, mask: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(input.shape, mask.shape)
    return input.expand(shape)[mask.expand(shape)]


def _is_fused_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> bool:
    """Whether a GPU runs an RMS norm as one kernel, which torch (from 2.9) does if input and weight have one type."""
    return input.is_meta and (weight is None or weight.dtype == input.dtype)


def _batch_norm_inputs(
    input: Tensor, weight: Tensor | None, *rest: Any, **options: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a batch norm. cuDNN, if it runs it, gets its input dense, and so keeps a copy of one that is transposed.

    (`_select_batch_norm_backend` and `_batch_norm_impl_index` in torch 2.13)
    """
    runs_cudnn = weight is not None and input.dim() >= 3 and weight.dtype == torch.float32
    if runs_cudnn and input.dtype in (torch.float32, torch.float16):
        input = input.contiguous(memory_format=suggest_memory_format(input))
    return (input, weight, *rest), options


def _rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    return fused.rms_norm(input, list(normalized_shape), weight)[0]


def _recurrent(name: str, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    gates = _RECURRENT[name]
    packed = isinstance(args[1], Tensor) and not isinstance(args[3], bool)
    if packed:
        sequence, _, state, weights, _, layers, _, training, bidirectional = args[:9]
    else:
        sequence, state, weights, _, layers, _, training, bidirectional = args[:8]
    state = list(state) if isinstance(state, list | tuple) else [state]
    out, hidden, cell, _ = fused.recurrent(
        sequence, state, list(weights), gates, layers, bidirectional, training, cell=False
    )
    return (out, hidden, cell) if gates == 4 else (out, hidden)


def _cell(
    gates: int, x: Tensor, state: Tensor | tuple[Tensor, Tensor], *weights: Tensor
) -> Tensor | tuple[Tensor, Tensor]:
    states = list(state) if isinstance(state, list | tuple) else [state]
    present = [w for w in weights if w is not None]
    out, _, cell, _ = fused.recurrent(x[None], states, present, gates, 1, False, True, cell=True)
    return (out[0], cell) if gates == 4 else out[0]


def _plain_cell(
    name: str, x: Tensor, state: Tensor, ih: Tensor, hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> Tensor:
    """As torch computes it, which `torch.export` would keep whole."""
    linear = torch.nn.functional.linear
    return _PLAIN_CELLS[name](linear(x, ih, b_ih) + linear(state, hh, b_hh))
