"""Two ways to train a split model in several processes: torch's synchronous 1F1B, and 1F1B with weight
stashing.

One process per stage, communicating through gloo on this machine. The asynchronous way is PipeDream's
(Narayanan et al., SOSP 2019, section 3.3): there is no flush, a minibatch's backward pass uses the weights of
its forward pass, and its update applies to the newest weights.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from profiling.errors import InputError, UnavailableError
from scheduling.pipeline.schedules import warm_up, worker_orders

if TYPE_CHECKING:
    from torch.distributed.pipelining import Pipe

Build = Callable[[], nn.Module]
Loss = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class TrainingRun:
    """Losses in the order of the minibatches, and all final weights."""

    losses: list[float]
    weights: Weights


@dataclass(frozen=True)
class Training:
    """Model, data and settings of a training run; every process builds the same model from it.

    Attributes:
        build: returns the model, with the same weights in every process; picklable.
        batches: (input, target) of each minibatch.
        split_points: modules that begin stages 2, 3, ...
        loss: mean loss of a minibatch; picklable.
        learning_rate: of plain SGD.
        microbatches: per minibatch, synchronous training only.
    """

    build: Build
    batches: Sequence[Batch]
    split_points: Sequence[str]
    loss: Loss = nn.functional.cross_entropy
    learning_rate: float = 0.1
    microbatches: int = 4

    @property
    def stages(self) -> int:
        return len(self.split_points) + 1


def split_model(model: nn.Module, example: Tensor, split_points: Sequence[str]) -> Pipe:
    """Split the model into stages, each split point starting one; activations no longer work in place.

    Raises:
        InputError: a split point is not a module of the model, or the model cannot be split there.
    """
    from torch.distributed.pipelining import SplitPoint, pipeline

    known = {name for name, _ in model.named_modules()}
    for name in split_points:
        if name not in known:
            raise InputError("split point is not a module of the model", expected="a dotted path", got=name)
    for module in model.modules():
        # The input of a stage is a leaf that requires a gradient, so the first layer must not write into it.
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    try:
        pipe = pipeline(
            model, mb_args=(example,), split_spec=dict.fromkeys(split_points, SplitPoint.BEGINNING)
        )
    except Exception as error:
        raise InputError(
            "model cannot be split", expected="a model that torch.export can trace", got=error
        ) from error
    if pipe.num_stages != len(split_points) + 1:
        raise InputError(
            "split points do not give as many stages",
            expected=f"{len(split_points) + 1} stages, each split point called once",
            got=pipe.num_stages,
        )
    return pipe


def train_synchronously(training: Training) -> TrainingRun:
    """Train with `torch.distributed.pipelining.Schedule1F1B`, one process per stage."""
    return launch(_synchronous_stage, training)


def train_asynchronously(training: Training) -> TrainingRun:
    """Train with 1F1B and weight stashing, one process per stage."""
    return launch(_asynchronous_stage, training)


def emulate_asynchronous(training: Training, delays: Sequence[int] | None = None) -> TrainingRun:
    """Emulate asynchronous training in one process: stage `s` uses the weights of `delays[s]` updates ago.

    If None, `delays` are the warm-up counts of the schedule; all zeros is plain SGD.
    """
    example = training.batches[0][0]
    pipe = split_model(training.build(), example, training.split_points)
    stages = [pipe.get_stage_module(i) for i in range(training.stages)]
    if delays is None:
        delays = [warm_up([1] * training.stages, s) for s in range(training.stages)]
    history = [[_weights(stage)] for stage in stages]
    losses = []
    for number, (inputs, target) in enumerate(training.batches):
        used = [past[max(0, number - late)] for past, late in zip(history, delays, strict=True)]
        value: Any = inputs
        for stage, weights in zip(stages, used, strict=True):
            value = torch.func.functional_call(stage, weights, _arguments(value))
        loss = training.loss(value, target)
        gradients = torch.autograd.grad(loss, [w for weights in used for w in weights.values()])
        losses.append(loss.item())
        given = iter(gradients)
        for past in history:
            past.append(_updated(past[-1], [next(given) for _ in past[-1]], training.learning_rate))
    merged = {name: w.detach() for past in history for name, w in past[-1].items()}
    return TrainingRun(losses, merged)


def _asynchronous_stage(rank: int, training: Training, folder: Path) -> None:
    import torch.distributed as dist

    model = training.build()
    pipe = split_model(model, training.batches[0][0], training.split_points)
    stage, last = pipe.get_stage_module(rank), training.stages - 1
    shapes = _boundary(pipe, training, rank)
    newest = _weights(stage)
    # Every minibatch in flight keeps its forward graph and thus the weights it used.
    in_flight: dict[int, tuple[list[Tensor], Any, Weights]] = {}
    sent: list[tuple[Any, Tensor]] = []
    losses = []
    for action in worker_orders("pipedream", training.stages, len(training.batches))[rank]:
        number = action.microbatch
        inputs, target = training.batches[number]
        if action.kind == "F":
            received = [torch.empty_like(shape) for shape in shapes] if rank else [inputs]
            for tensor in received if rank else ():
                dist.recv(tensor, rank - 1, tag=number)
                if tensor.is_floating_point():
                    tensor.requires_grad_()
            output = torch.func.functional_call(stage, newest, tuple(received))
            if rank == last:
                output = training.loss(output, target)
                losses.append(output.item())
            else:
                for tensor in _arguments(output):
                    sent.append(_send(tensor.detach(), rank + 1, number))
            in_flight[number] = (received, output, newest)
            continue
        received, output, used = in_flight.pop(number)
        outputs = [t for t in _arguments(output) if t.requires_grad]
        upstream = [torch.ones_like(t) for t in outputs]
        for tensor in upstream if rank < last else ():
            dist.recv(tensor, rank + 1, tag=number)
        wanted = [t for t in received if t.requires_grad]
        gradients = torch.autograd.grad(outputs, [*wanted, *used.values()], upstream)
        for gradient in gradients[: len(wanted)] if rank else ():
            sent.append(_send(gradient, rank - 1, number))
        newest = _updated(newest, list(gradients[len(wanted) :]), training.learning_rate)
        sent = [(work, tensor) for work, tensor in sent if not work.is_completed()]
    for work, _ in sent:
        work.wait()
    keep(folder, rank, newest, losses)


def _synchronous_stage(rank: int, training: Training, folder: Path) -> None:
    from torch.distributed.pipelining import Schedule1F1B

    example = training.batches[0][0].chunk(training.microbatches)[0]
    pipe = split_model(training.build(), example, training.split_points)
    stage = pipe.build_stage(rank, torch.device("cpu"))
    schedule = Schedule1F1B(stage, training.microbatches, loss_fn=training.loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=training.learning_rate)
    losses = []
    for inputs, target in training.batches:
        optimizer.zero_grad()
        parts: list[Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == training.stages - 1:
            schedule.step(target=target, losses=parts)
            losses.append(torch.stack(parts).mean().item())
        else:
            schedule.step()
        optimizer.step()
    keep(folder, rank, dict(stage.submod.named_parameters()), losses)


def launch(work: Callable[[int, Training, Path], None], training: Training) -> TrainingRun:
    """Run `work(rank, training, folder)` in one process per stage; it ends with `keep`."""
    import torch.distributed as dist
    import torch.multiprocessing as processes
    from safetensors.torch import load_file

    if not dist.is_available() or not dist.is_gloo_available():
        raise UnavailableError("torch was built without gloo", hint="install a build with torch.distributed")
    with tempfile.TemporaryDirectory(prefix="pipeline-") as name:
        folder = Path(name)
        # One server, which ends with this process, imports torch once and forks every stage of every run.
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            [__name__, "torch.distributed.pipelining"]
        )
        processes.start_processes(
            _process, (work, training, folder), nprocs=training.stages, start_method="forkserver"
        )
        weights: Weights = {}
        for rank in range(training.stages):
            weights |= load_file(folder / f"{rank}.safetensors")
        losses = json.loads((folder / f"{training.stages - 1}.json").read_text())
    return TrainingRun(losses, weights)


def _process(
    rank: int, work: Callable[[int, Training, Path], None], training: Training, folder: Path
) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=training.stages
    )
    try:
        work(rank, training, folder)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _send(tensor: Tensor, to: int, tag: int) -> tuple[Any, Tensor]:
    import torch.distributed as dist

    tensor = tensor.contiguous()
    return dist.isend(tensor, to, tag=tag), tensor


def _boundary(pipe: Pipe, training: Training, rank: int) -> list[Tensor]:
    """Empty tensors of the shapes that stage `rank` receives."""
    value: Any = training.batches[0][0]
    with torch.no_grad():
        for before in range(rank):
            value = pipe.get_stage_module(before)(*_arguments(value))
    return [torch.empty_like(tensor) for tensor in _arguments(value)]


def _arguments(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def _weights(stage: nn.Module) -> Weights:
    return {name: p.detach().clone().requires_grad_() for name, p in stage.named_parameters()}


def _updated(weights: Weights, gradients: list[Tensor], learning_rate: float) -> Weights:
    """New weights; the old ones are left unchanged for the minibatches that still need them."""
    return {
        name: (w.detach() - learning_rate * g).requires_grad_()
        for (name, w), g in zip(weights.items(), gradients, strict=True)
    }


def keep(folder: Path, rank: int, weights: Weights, losses: list[float]) -> None:
    """Store the results of a stage for `launch`: its weights and, for the last stage, the losses."""
    from safetensors.torch import save_file

    save_file({k: w.detach().contiguous() for k, w in weights.items()}, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(losses))
