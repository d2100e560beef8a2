"""Captures a module with `torch.export`, with backward pass and optimiser by the rules of `static`."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import Node, map_arg
from torch.utils import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from profiling.capture.cost import cost_of, packet_name, products_per_element, tensor_bytes
from profiling.capture.functions import fused_functions
from profiling.capture.fused import recurrent_flops
from profiling.capture.patching import patched
from profiling.capture.sizes import sizes_of
from profiling.capture.static import StaticOperator, assemble
from profiling.errors import InputError
from profiling.graph import ComputationGraph
from profiling.operators import ATEN, CONTRACTIONS
from profiling.training import atomic_layers, tensors_of
from profiling.workload import Workload

_ADDING = frozenset({"addmm", "baddbmm", "addbmm", "addmv"})
_BROADCAST = torch.ops.aten.broadcast_tensors.default
_DETACHING = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})


def capture_export(
    model: nn.Module,
    inputs: Any,
    *,
    name: str,
    batch_size: int,
    workload: Workload,
    loss: Callable[[Any], Tensor],
) -> ComputationGraph:
    """The graph of a training step from `torch.export` (not strict) of a module on `meta` and its loss.

    Raises:
        InputError: the module cannot be exported, or has regions or sizes that these rules cannot follow.
    """
    args = inputs if isinstance(inputs, tuple | list) else () if isinstance(inputs, Mapping) else (inputs,)
    kwargs = dict(inputs) if isinstance(inputs, Mapping) else None
    try:
        with fused_functions(), _no_checkpoints():
            program = torch.export.export(_WithLoss(model, loss), tuple(args), kwargs, strict=False)
    except InputError:
        raise
    except Exception as error:  # export raises many unrelated types
        raise InputError(
            "torch.export cannot trace the module",
            got=str(error).splitlines()[0],
            hint="record a step instead",
        ) from error
    reader = _Reader(program, workload.precision == "tf32")
    if reader.unknown:
        counts = ", ".join(f"{kind} ({count})" for kind, count in sorted(reader.unknown.items()))
        warnings.warn(f"{name}: operators without a canonical kind: {counts}", stacklevel=3)
    return assemble(
        name,
        reader.operators,
        batch_size=batch_size,
        input_bytes=float(sum(t.numel() * t.element_size() for t in tensors_of(inputs))),
        workload=workload,
        source="export",
        layers=[layer for layer, _ in atomic_layers(model)],
        frozen={n for n, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad},
        read=reader.results,
        unread=_unread(model, reader.operators),
    )


def _unread(model: nn.Module, operators: Sequence[StaticOperator]) -> list[tuple[int, float]]:
    """Elements and bytes of the parameters that no operator reads, such as those of a head that the loss leaves out."""
    read = {name for op in operators for name, _, _ in op.parameters}
    names: dict[nn.Parameter, set[str]] = {}  # several of a tied one
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, set()).add(name)
    return [(p.numel(), float(p.numel() * p.element_size())) for p, own in names.items() if not own & read]


class _WithLoss(nn.Module):
    """A module followed by its loss."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.loss(self.model(*args, **kwargs))


class _Reader:
    """Reads the operators of an exported program.

    Attributes:
        operators: in execution order.
        results: those whose results are the program's outputs.
        unknown: number of operators of each kind that is not canonical.
    """

    def __init__(self, program: Any, tf32: bool) -> None:
        signature = program.graph_signature
        self.operators: list[StaticOperator] = []
        self.unknown: dict[str, int] = {}
        self._tf32 = tf32
        self._made_by = _Producers()
        # Names of the parameters that a value is computed from.
        self._owners = {key: [_inside(name)] for key, name in signature.inputs_to_parameters.items()}
        self._sizes = {
            _inside(name): (p.numel(), float(p.numel() * p.element_size()))
            for name, p in program.named_parameters()
        }
        self._settings = set(signature.inputs_to_buffers)
        # Names of inputs and their views, which no operator produced.
        self._given = set(signature.user_inputs)
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._visit(node)
        results = {self._made_by(name) for name in signature.user_outputs if name is not None}
        self.results = {index for index in results if index is not None}

    def _visit(self, node: Any) -> None:
        sources = _sources(node)
        owned = list(dict.fromkeys(name for s in sources for name in self._owners.get(s, ())))
        made = [s for s in sources if self._made_by(s) is not None]
        outputs = list(tensors_of(_value(node)))
        from_data = made or self._given.intersection(sources)
        if from_data:
            _check_followed(node, outputs)
        if not isinstance(node.target, torch._ops.OpOverload) or _is_view(node) or not outputs:
            if sources:
                self._made_by.view(node, (made or sources)[0])
            if not made and from_data:
                self._given.add(node.name)
            elif not made and owned:
                self._owners[node.name] = owned
        elif not from_data and (owned or set(sources) <= self._settings) and not _is_contraction(node):
            if owned:
                self._owners[node.name] = owned
        else:
            self._append(node, owned, made)

    def _append(self, node: Any, owned: list[str], made: list[str]) -> None:
        """Add the operator of a node, which reads these parameters and results of others."""
        value, inputs = _value(node), node.all_input_nodes
        _check_followed(node, list(tensors_of(value)))
        args, kwargs = map_arg(node.args, _value), map_arg(node.kwargs, _value)
        cost = cost_of(node.target, args, kwargs, value, self._tf32)
        if not cost.known:
            self.unknown[cost.name] = self.unknown.get(cost.name, 0) + 1
        kind = "linear" if cost.kind == "matmul" and owned else cost.kind
        if kind == "fill" or (kind == "embedding" and not owned):
            return
        flops = cost.flops
        if not flops and kind in CONTRACTIONS:
            flops = _composite_flops(node.target, cost.name, args, kwargs)
        stack = node.meta.get("nn_module_stack") or {}
        path = str(list(stack.values())[-1][0]) if stack else ""
        factors, weights = self._factors(kind, node)
        output = next(tensors_of(value))
        self.operators.append(
            StaticOperator(
                name=node.name,
                kind=kind,
                flops=flops,
                read=cost.read,
                written=cost.written,
                inputs=[(self._made_by[n.name], _bytes(n)) for n in inputs if n.name in made],
                parameters=[(name, *self._sizes[name]) for name in owned],
                shape=tuple(output.shape),
                dtype=str(output.dtype).removeprefix("torch."),
                path=_inside(path),
                aligned=_aligned(kind, node),
                input_dtype=next(filter(None, (_type(n) for n in inputs if n.name not in self._owners)), ""),
                weight_dtype=next(filter(None, (_type(n) for n in inputs if n.name in self._owners)), ""),
                sizes=sizes_of(node.target, cost.kind, args, kwargs, value),
                factors=factors,
                weights=weights,
                detached=self._made_by.detached([n.name for n in inputs]),
                # Operators outside the model are its loss.
                training_only=not path,
            )
        )
        self._made_by.operator(node, len(self.operators) - 1)

    def _factors(self, kind: str, node: Any) -> tuple[list[tuple[int, float]] | None, list[list[str]] | None]:
        """`StaticOperator.factors` and `weights`."""
        made_by, weights = self._made_by, None
        if kind != "recurrent":
            bias = ("bias", "self", "input") if packet_name(node.target) in _ADDING else ("bias",)
            arguments = zip(node.target._schema.arguments, node.args, strict=False)
            multiplied = [value for argument, value in arguments if argument.name not in bias]
            multiplied += [value for name, value in node.kwargs.items() if name not in bias]
            given: list[Any] = []
            map_arg(multiplied, given.append)
            shares = [1.0] * len(given)
            weights = [self._owners[n.name] for n in given if n.name in self._owners]
        elif node.target is torch.ops.cotenant.recurrent.default and node.args[7]:
            # The weights of a cell: of the input, then of the state.
            given, sizes = [node.args[0], node.args[1][0]], [_value(n).numel() for n in node.args[2][:2]]
            shares = [size / sum(sizes) for size in sizes]
        else:
            return None, None
        made = [(n.name, s) for n, s in zip(given, shares, strict=True) if made_by(n.name) is not None]
        return [(made_by[name], share) for name, share in made if not made_by.detached([name])], weights


def _inside(name: str) -> str:
    """Name of a parameter or submodule within the model."""
    return name.removeprefix("model").removeprefix(".")


class _Producers:
    """Operators by the names of their results and the views of these, which share what is written to them in place."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._base: dict[str, str] = {}
        self._detached: set[str] = set()

    def __call__(self, name: str) -> int | None:
        return self._index.get(self._base.get(name, name))

    def __getitem__(self, name: str) -> int:
        return self._index[self._base.get(name, name)]

    def operator(self, node: Any, index: int) -> None:
        """Name the result of an operator, and of those that it writes in place."""
        self._index[node.name] = index
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Node):
                base = self._base.get(value.name, value.name)
                self._index[base] = index
                self._base[node.name] = base

    def view(self, node: Any, source: str) -> None:
        """Name a view of a tensor, which may yet be written to."""
        self._base[node.name] = self._base.get(source, source)
        if source in self._detached or node.target in _DETACHING:
            self._detached.add(node.name)

    def detached(self, sources: Sequence[str]) -> frozenset[int]:
        """Operators that give only detached tensors to one that reads these."""
        made = [name for name in sources if self(name) is not None]
        attached = {self(name) for name in made if name not in self._detached}
        return frozenset(self[name] for name in made if self(name) not in attached)


def _check_followed(node: Any, outputs: list[Tensor]) -> None:
    """Raise `InputError` if a node hides operators (a region, `vmap`), or its outputs' sizes depend on values."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        what = f"a region of its own, {node.target.name()} (no_grad, autocast, cond, ...)"
    elif any(isinstance(size, torch.SymInt) for tensor in outputs for size in tensor.shape):
        what = f"outputs of {node.name} whose sizes depend on values"
    elif any(torch._C._functorch.is_batchedtensor(tensor) for tensor in outputs):
        what = "operators under vmap"
    else:
        return
    raise _not_followed(what)


def _not_followed(what: str) -> InputError:
    return InputError(
        "the rules of a static capture cannot follow the module", got=what, hint="record a step instead"
    )


@contextmanager
def _no_checkpoints() -> Iterator[None]:
    """Refuse `torch.utils.checkpoint`, of which an exported program shows nothing, as `InputError`."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise _not_followed("activation checkpointing, which runs operators again in the backward pass")

    places = [
        (checkpoint, "_checkpoint_without_reentrant_generator", refuse),
        (checkpoint.CheckpointFunction, "apply", refuse),
    ]
    with patched(places):
        yield


def _composite_flops(func: Any, name: str, args: Any, kwargs: Any) -> float:
    """FLOPs of a composite contraction, which a recording sees decomposed."""
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        weights = args[3] if isinstance(args[3], list | tuple) else args[2]
        return float(recurrent_flops(args[0].shape[:-1].numel(), [w.shape for w in weights]))
    with FlopCounterMode(display=False) as counter:
        func(*args, **kwargs)
    return products_per_element((args, kwargs)) * float(counter.get_total_flops())


def _is_contraction(node: Any) -> bool:
    kind = ATEN.get(packet_name(node.target))
    return kind in CONTRACTIONS or kind == "embedding"


def _sources(node: Any) -> list[str]:
    """Names of the nodes that a node reads; of a result of `broadcast_tensors`, of the tensor that it is a view of."""
    if node.target is operator.getitem and node.args[0].target is _BROADCAST:
        return [node.args[0].args[0][node.args[1]].name]
    return [n.name for n in node.all_input_nodes]


def _is_view(node: Any) -> bool:
    if node.target is _BROADCAST:
        return True
    if torch.Tag.inplace_view in node.target.tags:  # `squeeze_` and the like
        return True
    returns = node.target._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _value(node: Any) -> Any:
    """Result of a node: a tensor without data, or whatever the call returns."""
    return node.meta.get("val")


def _bytes(node: Any) -> float:
    return sum(tensor_bytes(t) for t in tensors_of(_value(node)) if isinstance(t, Tensor))


def _type(node: Any) -> str:
    value = _value(node)
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else ""


def _aligned(kind: str, node: Any) -> tuple[int, ...]:
    if kind not in CONTRACTIONS:
        return ()
    shapes = [_value(n).shape for n in node.all_input_nodes if isinstance(_value(n), Tensor)]
    matrices = [s for s in shapes if len(s) >= 2]
    if kind in ("convolution", "transposed_convolution") and len(matrices) > 1:
        return tuple(matrices[1][:2])
    return (*matrices[0][-1:], *matrices[-1][-2:]) if len(matrices) > 1 else ()
