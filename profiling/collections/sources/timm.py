"""PyTorch Image Models (timm): every registered name at the sizes of its pretrained configurations.

The step is that of timm's `benchmark.py`: cross-entropy of the (first) output against random classes.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from profiling.capture.module import to_meta
from profiling.capture.sizes import kernels_by_channel
from profiling.collections.entry import Entry, Maker
from profiling.collections.lazy import lazy_weights
from profiling.training import Phase, TrainingJob

# Sizes that occur in timm's result files but not in its configurations.
_EXTRA_SIZES = {
    "ese_vovnet57b": (224,),
    "mobilenetv3_large_150d": (224,),
    "sam2_hiera_tiny": (224,),
}
# Deprecated names that timm 1.x maps to a network of another width.
_WRONG_ALIASES = frozenset({"ig_resnext101_32x16d", "ig_resnext101_32x32d", "ig_resnext101_32x48d"})


Change = Callable[[nn.Module], nn.Module]


def _as_built(model: nn.Module) -> nn.Module:
    return model


def entries(change: Change = _as_built) -> Iterator[Entry]:
    """Names of the timm on the import path, in the order of its registry.

    Args:
        change: applied to a network before it is recorded.
    """
    _without_inplace_abn()
    import timm

    if timm.__version__.startswith("0."):
        yield from _entries_0(change)
    else:
        yield from _entries_1(change)


def _entries_0(change: Change) -> Iterator[Entry]:
    from timm.models import registry  # type: ignore[import-not-found]

    for name in sorted(registry._model_entrypoints):
        sizes = _sizes([registry._model_pretrained_cfgs.get(name, {})])
        yield Entry(name, registry._model_to_module[name], sizes, _builder(name, change, {}))


def _entries_1(change: Change) -> Iterator[Entry]:
    from timm.models import _registry as registry  # type: ignore[import-not-found]

    deprecated = registry.get_deprecated_models()
    for name in sorted(registry._model_entrypoints):
        if name in deprecated:
            continue
        default = registry.get_pretrained_cfg(name)
        plain = {"": vars(default)} if default is not None else {}
        for title, settings in registry.get_arch_pretrained_cfgs(name).items():
            plain[title.partition(".")[2]] = vars(settings)
        sizes = _sizes(list(plain.values())) + _EXTRA_SIZES.get(name, ())
        tags = {
            shape[-2]: tag
            for key in ("test_input_size", "input_size")
            for tag, settings in reversed(plain.items())
            if (shape := settings[key])
        }
        shapes = {size: _input_shape(plain, size) for size in sizes}
        build = _builder(name, change, tags, shapes)
        yield Entry(name, registry._model_to_module[name], tuple(dict.fromkeys(sizes)), build)
    for name, target in sorted(deprecated.items()):
        if name not in _WRONG_ALIASES:
            arch = target.split(".")[0]
            yield Entry(name, registry._model_to_module[arch], (), _no_job, alias_of=arch)


def _sizes(configurations: list[dict[str, Any]]) -> tuple[int, ...]:
    shapes = [c.get(key) for key in ("input_size", "test_input_size") for c in configurations]
    return tuple(dict.fromkeys(shape[-2] for shape in shapes if shape)) or (224,)


def _input_shape(configurations: dict[str, dict[str, Any]], size: int) -> tuple[int, int]:
    """Height and width; a few networks take non-square images."""
    for settings in configurations.values():
        shape = settings["input_size"]
        if shape and shape[-2] == size:
            return tuple(shape[-2:])
    return size, size


def _no_job(_size: int) -> Iterator[Maker]:
    raise AssertionError("an alias is not recorded")


def _builder(
    name: str, change: Change, tags: dict[int, str], shapes: dict[int, tuple[int, int]] | None = None
) -> Callable[[int], Iterator[Maker]]:
    def at(size: int) -> Iterator[Maker]:
        shape = (shapes or {}).get(size, (size, size))
        for attempt in _attempts(name, tags.get(size, ""), shape):
            try:
                model = change(attempt())
            except Exception as error:  # a network that reads values, or lacks such an option
                yield _raising(error)
            else:
                yield partial(_job, model, shape)

    return at


def _raising(error: Exception) -> Maker:
    def fail(_batch_size: int, _precision: str) -> TrainingJob:
        raise error

    return fail


def _attempts(name: str, tag: str, shape: tuple[int, int]) -> Iterator[Callable[[], nn.Module]]:
    """Ways to build a network, the simplest first; `meta` before the CPU, whose weights are never touched."""
    import timm

    title = f"{name}.{tag}" if tag else name

    def on_meta(**options: Any) -> nn.Module:
        with lazy_weights("meta"):
            model = timm.create_model(title, **options)
        # `torch.Tensor(...)` ignores the default device.
        is_whole = all(t.is_meta for t in (*model.parameters(), *model.buffers()))
        return model if is_whole else to_meta(model)

    def on_cpu(**options: Any) -> nn.Module:
        with lazy_weights("cpu"):
            return to_meta(timm.create_model(title, **options))

    yield on_meta
    yield on_cpu
    yield lambda: on_meta(img_size=shape)
    yield lambda: on_cpu(img_size=shape)


def _first(output: Any) -> Tensor:
    if isinstance(output, dict):
        output = tuple(output.values())
    return _first(output[0]) if isinstance(output, tuple | list) else output


def _loss(model: nn.Module, batch: Any, _memo: dict[str, Any]) -> Tensor:
    output = _first(model(batch["image"]))
    return F.cross_entropy(output, batch["label"]) if output.dim() == 2 else output.mean()


def _job(model: nn.Module, shape: tuple[int, int], batch_size: int, precision: str) -> TrainingJob:
    model.train()
    with torch.device("meta"):
        batch = {
            "image": torch.empty(batch_size, 3, *shape),
            "label": torch.empty(batch_size, dtype=torch.int64),
        }
    return TrainingJob(model, batch, (Phase(_loss),), batch_size=batch_size, precision=precision)


def _without_inplace_abn() -> None:
    """Replace `inplace_abn`, which has no build for current torch, by batch norm and an in-place activation.

    It keeps only its output, and recomputes its input from that (Rota Bulo et al., CVPR 2018). Its kernels have
    a block of threads for each channel.
    """
    if "inplace_abn" in sys.modules:
        return

    def apply(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        training: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
        activation: str = "leaky_relu",
        activation_param: float = 0.01,
    ) -> Tensor:
        with kernels_by_channel():
            with _kept_by_shape(x):
                x = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
            if activation == "leaky_relu":
                return F.leaky_relu(x, activation_param, inplace=True)
            return F.elu(x, activation_param, inplace=True) if activation == "elu" else x

    package, functions = types.ModuleType("inplace_abn"), types.ModuleType("inplace_abn.functions")
    functions.inplace_abn = functions.inplace_abn_sync = apply  # type: ignore[attr-defined]
    package.functions = functions  # type: ignore[attr-defined]
    sys.modules |= {"inplace_abn": package, "inplace_abn.functions": functions}


@contextmanager
def _kept_by_shape(x: Tensor) -> Iterator[None]:
    """Make autograd keep only the shape of `x`: on `meta`, its gradient needs nothing else."""
    storage, device = x.untyped_storage()._cdata, x.device

    def pack(saved: Tensor) -> Tensor | tuple[torch.Size, tuple[int, ...], torch.dtype]:
        if saved.untyped_storage()._cdata != storage:
            return saved
        return saved.shape, saved.stride(), saved.dtype

    def unpack(kept: Tensor | tuple[torch.Size, tuple[int, ...], torch.dtype]) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        shape, stride, dtype = kept
        # Hidden from the recording: the gradient is written in place of the output's.
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
