"""FlexAttention as one fused operator, whose block mask determines how many scores it computes.

Compiled FlexAttention runs one kernel, which skips blocks of scores that the mask leaves out (Dong et al., "Flex
Attention", 2024). Without `torch.compile`, torch would keep all scores in memory; models compile it, so it counts as
compiled. Gradients of tensors that a `score_mod` reads are not recorded.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.overrides import _len_torch_function_stack, _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from profiling.capture import fused
from profiling.capture.patching import patched

# A mask is evaluated for every score, a row of blocks at a time; larger ones would take minutes.
_MAX_SCORES = 1 << 30


@contextmanager
def flex_functions() -> Iterator[None]:
    """Let `flex_attention` and `create_block_mask` run on `meta`.

    Models import these functions by name and wrap them in `torch.compile`, so it is their code that is replaced.
    Compiled functions run uncompiled meanwhile.
    """
    places = [
        (flex.flex_attention, "__code__", _flex_attention.__code__),
        (flex.create_block_mask, "__code__", _create_block_mask.__code__),
    ]
    with patched(places), torch.compiler.set_stance("force_eager"):
        yield


# Code of these two runs with the globals of torch's module, so they import what they use.
def _flex_attention(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    score_mod=None,
    block_mask=None,
    scale=None,
    enable_gqa=False,
    return_lse=False,
    kernel_options=None,
    *,
    return_aux=None,
):
    from profiling.capture.flex import attend

    return attend(query, key, value, block_mask, return_lse, return_aux)


def _create_block_mask(  # type: ignore[no-untyped-def]
    mask_mod,
    B,
    H,
    Q_LEN,
    KV_LEN,
    device=None,
    BLOCK_SIZE=128,
    _compile=False,
    separate_full_blocks=True,
    compute_dq_write_order=False,
    dq_kv_order=True,
):
    from profiling.capture.flex import block_mask_of

    return block_mask_of(mask_mod, B or 1, H or 1, (Q_LEN, KV_LEN), BLOCK_SIZE)


def attend(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Any, return_lse: bool, return_aux: Any
) -> Any:
    """`flex_attention` on (batch, heads, length, width), on `meta`."""
    share = 1.0 if block_mask is None else _share_of(block_mask)
    out, log_sum = fused.attention(query, key, value, None, share)
    if return_aux is not None:
        return out, flex.AuxOutput(
            log_sum if return_aux.lse else None, log_sum if return_aux.max_scores else None
        )
    return (out, log_sum) if return_lse else out


def block_mask_of(
    mask_mod: Callable[..., Tensor],
    batch: int,
    heads: int,
    lengths: tuple[int, int],
    block_size: int | tuple[int, int],
) -> Any:
    """`create_block_mask`, on the CPU; of a mask that depends on values of the model's tensors, all blocks.

    Args:
        mask_mod: whether a score counts, by batch, head, query and key.
        batch, heads: for which the mask differs.
        lengths: of queries and keys.
        block_size: of queries and keys, or of both.
    """
    rows, columns = (block_size, block_size) if isinstance(block_size, int) else block_size
    shape = batch, heads, -(-lengths[0] // rows), -(-lengths[1] // columns)
    with _without_modes():
        blocks = torch.ones(shape, dtype=torch.int8, device="cpu")
        reason = "it is too large" if batch * heads * lengths[0] * lengths[1] > _MAX_SCORES else ""
        try:
            for number in range(0 if reason else shape[2]):
                first = number * rows
                mask = _strip(mask_mod, batch, heads, (first, min(first + rows, lengths[0])), lengths[1])
                mask = torch.nn.functional.pad(mask, (0, shape[3] * columns - lengths[1]))
                blocks[:, :, number] = mask.view(batch, heads, -1, shape[3], columns).any(4).any(2)
        except (RuntimeError, NotImplementedError) as error:
            blocks.fill_(1)
            reason = str(error).partition("\n")[0]
        if reason:
            warnings.warn(f"a block mask is assumed to be full: {reason}", stacklevel=2)
        return flex._create_sparse_block_from_block_mask((blocks, None), mask_mod, lengths, rows, columns)


def _strip(
    mask_mod: Callable[..., Tensor], batch: int, heads: int, queries: tuple[int, int], keys: int
) -> Tensor:
    """(batch, heads, queries, keys) the mask of a range of queries."""
    first, last = queries
    shifted = lambda b, h, q, k: mask_mod(b, h, q + first, k)  # noqa: E731
    return flex.create_mask(shifted, batch, heads, last - first, keys, device="cpu")


def _share_of(block_mask: Any) -> float:
    """Share of the blocks of scores that are not masked out altogether."""
    if block_mask.kv_num_blocks.is_meta:
        # Moved there, as `to(x.device)` does; its function still tells which blocks there are.
        batch, heads = block_mask.kv_num_blocks.shape[:2]
        block_mask = block_mask_of(
            block_mask.mask_mod, batch, heads, block_mask.seq_lengths, block_mask.BLOCK_SIZE
        )
    with _without_modes():
        kept = block_mask.kv_num_blocks.sum().item()
        if block_mask.full_kv_num_blocks is not None:
            kept += block_mask.full_kv_num_blocks.sum().item()
        rows, columns = block_mask.BLOCK_SIZE
        per_head = -(-block_mask.seq_lengths[0] // rows) * -(-block_mask.seq_lengths[1] // columns)
        return min(float(kept) / (block_mask.kv_num_blocks[..., 0].numel() * per_head), 1.0)


@contextmanager
def _without_modes() -> Iterator[None]:
    """Compute on the CPU, unrecorded, whatever modes are active."""
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    try:
        with _disable_current_modes():
            yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)
