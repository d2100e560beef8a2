"""`TrainingJob`: one training step of a model.

The same code serves capture on `meta` and measuring on a device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from profiling.errors import InputError
from profiling.workload import PREDICTED_PRECISIONS, Workload

Loss = Callable[[Any, Any, dict[str, Any]], Tensor]

PARAMETER_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
AUTOCAST = "amp"


@dataclass(frozen=True)
class Phase:
    """One optimiser's part of a step; most models have one, adversarial ones several.

    Attributes:
        loss: `(model, batch, memo) -> scalar`; `memo` is a dictionary shared by the phases of one step.
        trains: names of the sub-modules whose parameters this phase's optimiser updates; empty for all.
        shares_forward: whether the phases of a step share one forward pass. Its graph is then kept beyond
            this phase's backward pass, which only reaches the phase's own parameters, and all parameters are
            updated after the last phase.
    """

    loss: Loss
    trains: tuple[str, ...] = ()
    shares_forward: bool = False


def make_optimizer(name: str, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer | None:
    """The optimiser of that name with its usual hyper-parameters; None if nothing is trained, or for `none`.

    Raises:
        InputError: the name is not in `profiling.workload.OPTIMIZERS`.
    """
    if not parameters or name == "none":
        return None
    builders: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3),
        "momentum": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4),
        "adam": lambda: torch.optim.Adam(parameters, lr=1e-4),
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=1e-2),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, lr=1e-4),
        "adagrad": lambda: torch.optim.Adagrad(parameters, lr=1e-3),
    }
    if name not in builders:
        raise InputError("unknown optimizer", expected="one of " + ", ".join((*builders, "none")), got=name)
    return builders[name]()


class TrainingJob:
    """A model with a resident batch and its optimisers.

    Args:
        model: root module, already in training mode, on its device and in its data type.
        batch: input of the phases' losses; its tensors stay on the device.
        phases: parts of a step, in order.
        batch_size: samples per forward/backward pass.
        optimizer: one of `profiling.workload.OPTIMIZERS`, the same kind for every phase.
        precision: one of `profiling.workload.PRECISIONS`; `amp` runs the forward pass under autocast; on a
            GPU, `tf32` enables TF32 for this process, and every other precision disables it; `fp8` is for capture.
        gradient_accumulation: forward/backward passes per optimiser step.

    Raises:
        InputError: `fp8` on another device than `meta`.

    Attributes:
        samples_per_step: `batch_size * gradient_accumulation`.
        optimizers: one per phase; None if everything that the phase trains is frozen, and with `none`.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        phases: Sequence[Phase],
        *,
        batch_size: int,
        optimizer: str = "sgd",
        precision: str = "fp32",
        gradient_accumulation: int = 1,
    ) -> None:
        self.model = model
        self.batch = batch
        self.phases = tuple(phases)
        self.batch_size = batch_size
        self.optimizer_name = optimizer
        self.precision = precision
        self.gradient_accumulation = gradient_accumulation
        self.samples_per_step = batch_size * gradient_accumulation
        held = (*model.parameters(), *tensors_of(batch))
        self.device = next((tensor.device for tensor in held), torch.device("cpu"))
        if precision in PREDICTED_PRECISIONS and self.device.type != "meta":
            raise InputError(
                f"jobs in {precision} can be predicted, but not run",
                expected="another precision",
                got=f"precision {precision} on {self.device.type}",
                hint="torch trains in it only through other libraries; run the job with precision=amp",
            )
        self.optimizers = [make_optimizer(optimizer, self._trained(phase)) for phase in self.phases]
        if self.device.type == "cuda":
            _set_tf32(precision == "tf32")
        use_scaler = precision == AUTOCAST and self.device.type == "cuda"
        self._scaler = torch.amp.GradScaler("cuda") if use_scaler else None

    def step(self, mark: Callable[[str], None] = lambda _: None) -> Tensor:
        """One training step: per phase forward, loss, backward, optimiser.

        Args:
            mark: called with `forward`, `backward` and `optimizer` as each part ends.

        Returns:
            the last phase's loss, a scalar on the device (not waited for).
        """
        memo: dict[str, Any] = {}
        loss = torch.empty(0)
        waiting: list[torch.optim.Optimizer | None] = []
        for phase, optimizer in zip(self.phases, self.optimizers, strict=True):
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=True)
            else:
                for parameter in self._trained(phase):
                    parameter.grad = None
            for _ in range(self.gradient_accumulation):
                with self._autocast():
                    loss = phase.loss(self.model, self.batch, memo)
                if not isinstance(loss, Tensor):
                    raise InputError(
                        "the loss is not a tensor",
                        expected="one number, as a tensor",
                        got=type(loss).__name__,
                        hint="let the loss function pick it, as in lambda output: output['loss']",
                    )
                if loss.requires_grad and loss.numel() != 1:
                    raise InputError(
                        "the loss is not one number",
                        expected="one number, as a tensor",
                        got=f"shape {tuple(loss.shape)}",
                        hint="let the loss function take its mean",
                    )
                mark("forward")
                own = self._trained(phase) if phase.shares_forward else None
                if loss.requires_grad and own != []:
                    scaled = loss if self._scaler is None else self._scaler.scale(loss)
                    scaled.backward(retain_graph=phase.shares_forward, inputs=own)
                mark("backward")
            waiting.append(optimizer)
            if not phase.shares_forward or phase is self.phases[-1]:
                self._update(waiting)
                waiting.clear()
            mark("optimizer")
        return loss.detach()

    def _update(self, optimizers: Sequence[torch.optim.Optimizer | None]) -> None:
        present = [optimizer for optimizer in optimizers if optimizer is not None]
        if self._scaler is None:
            for optimizer in present:
                optimizer.step()
            return
        # A scaler refuses an optimiser without gradients, as where the only trained layers take no part in the step.
        present = [optimizer for optimizer in present if _has_gradients(optimizer)]
        for optimizer in present:
            self._scaler.step(optimizer)
        if present:
            self._scaler.update()

    def _trained(self, phase: Phase) -> list[nn.Parameter]:
        modules = [self.model.get_submodule(name) for name in phase.trains] or [self.model]
        seen = {id(p): p for module in modules for p in module.parameters() if p.requires_grad}
        return list(seen.values())

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.precision != AUTOCAST or self.device.type == "meta":
            return nullcontext()
        # A CPU without FP16 arithmetic emulates it at a hundredth of the speed; BF16 has the same bytes.
        dtype = torch.float16 if self.device.type == "cuda" else torch.bfloat16
        return torch.autocast(self.device.type, dtype=dtype)


def _set_tf32(enabled: bool) -> None:
    """Run all FP32 operators of this process in TF32, or none; torch's default is convolutions only."""
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    cuda.matmul.allow_tf32 = cudnn.allow_tf32 = enabled
    # Otherwise convolutions follow `torch.backends.fp32_precision`, which a user's module may have set.
    for operators in (cuda.matmul, cudnn.conv, cudnn.rnn):
        operators.fp32_precision = "tf32" if enabled else "ieee"


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def check_gradients(job: TrainingJob, loss: object, frozen_prefix: int) -> None:
    """Raise `InputError` if a step trained nothing, although the job has something to train.

    With a frozen prefix, what is left may not take part in the step.

    Args:
        job: after a step.
        loss: what the step returned.
        frozen_prefix: number of atomic layers that the job's options freeze.
    """
    wanted = [name for name, p in job.model.named_parameters() if p.requires_grad]
    if not wanted or frozen_prefix or any(p.grad is not None for p in job.model.parameters()):
        return
    given = ""
    if isinstance(loss, Tensor) and not (loss.is_floating_point() or loss.is_complex()):
        given = f"a loss of {str(loss.dtype).removeprefix('torch.')}, and "
    raise InputError(
        "no parameter gets a gradient from the loss",
        expected="a loss that depends on the trainable parameters",
        got=f"{given}none of {', '.join(wanted[:3])}{', ...' if len(wanted) > 3 else ''}",
        hint="do not detach the loss, compute it from whole numbers or run the module without gradients; set "
        "requires_grad=False on what is not trained",
    )


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for own in fields(value):
            yield from tensors_of(getattr(value, own.name))


def map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """`function` of every tensor in nested tuples, lists, mappings (which become dictionaries) and dataclasses."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        record = copy.copy(value)
        for own in fields(value):
            # Also of a frozen one.
            object.__setattr__(record, own.name, map_tensors(getattr(value, own.name), function))
        return record
    return value


def atomic_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Modules with parameters of their own, in module order: the unit of freezing.

    A module whose parameters all belong to an earlier one (tied weights) is not a layer of its own.
    """
    seen: set[int] = set()
    layers = []
    for name, module in model.named_modules():
        own = {id(p) for p in module.parameters(recurse=False)}
        if own - seen:
            layers.append((name, module))
        seen |= own
    return layers


def freeze_prefix(model: nn.Module, count: int) -> None:
    """Stop training the first `count` atomic layers; their forward pass is unchanged.

    Raises:
        InputError: the model has fewer layers.
    """
    layers = atomic_layers(model)
    if not 0 <= count <= len(layers):
        raise InputError(
            "frozen_prefix is out of range", expected=f"0 to {len(layers)} atomic layers", got=count
        )
    for _, module in layers[:count]:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)


def checkpoint_blocks(model: nn.Module) -> None:
    """Recompute activations in the backward pass, block by block.

    A block is a member of an outermost `Sequential` or `ModuleList` with two or more atomic layers; a list
    without such a member is one block itself. Only the inputs of blocks are then kept from forward to
    backward.
    """
    blocks: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(child, nn.Sequential | nn.ModuleList):
                members = [m for m in child.children() if len(atomic_layers(m)) > 1]
                nested = [m for m in members if not isinstance(m, nn.ModuleList)]
                if nested:
                    blocks.extend(nested)
                elif isinstance(child, nn.Sequential) and len(atomic_layers(child)) > 1:
                    blocks.append(child)
                else:
                    visit(child)
            else:
                visit(child)

    visit(model)
    for block in blocks:
        _wrap(block)


def _wrap(block: nn.Module) -> None:
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        # preserve_rng_state would ask for a `meta` random state, which does not exist.
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    block.forward = recomputed


def prepared_job(
    model: nn.Module, batch: Any, phases: Sequence[Phase], batch_size: int, workload: Workload
) -> TrainingJob:
    """A job of a module with the options of a workload, whose model and batch size are not used.

    Parameters and inputs get the workload's type, layers are frozen, and blocks are checkpointed, in place.

    Raises:
        InputError: `frozen_prefix` is out of range.
    """
    if workload.precision in PARAMETER_TYPES:
        dtype = PARAMETER_TYPES[workload.precision]

        def cast(tensor: Tensor) -> Tensor:
            if tensor.is_complex():  # `Module.to` would drop the imaginary part
                return tensor.to(torch.complex128) if dtype == torch.float64 else tensor
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        def cast_input(tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point() and not tensor.is_complex():
                return tensor  # itself, as a capture knows values of whole numbers
            return cast(tensor).detach().requires_grad_(tensor.requires_grad)  # its gradient is kept

        model = model._apply(cast)
        batch = map_tensors(batch, cast_input)
    model.train()
    freeze_prefix(model, workload.frozen_prefix)
    if workload.activation_checkpointing:
        checkpoint_blocks(model)
    return TrainingJob(
        model,
        batch,
        phases,
        batch_size=batch_size,
        optimizer=workload.optimizer or "sgd",
        precision=workload.precision,
        gradient_accumulation=workload.gradient_accumulation,
    )
