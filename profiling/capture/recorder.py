"""Records one training step on `meta` tensors: every operator, the producers of its inputs, and live memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.capture import meta_cache
from profiling.capture.cost import Cost, cost_of, packet_name, results_of, selects, tensor_bytes
from profiling.capture.live import LiveBytes
from profiling.capture.sizes import sizes_of
from profiling.errors import LimitError
from profiling.operator_sizes import OperatorSizes
from profiling.training import tensors_of

MAX_OPERATORS = 1_000_000


@dataclass
class Node:
    """An operator under construction; see `profiling.graph.Operator` for the fields."""

    kind: str
    path: str
    layer: int
    shape: tuple[int, ...]
    dtype: str
    input_dtype: str
    weight_dtype: str
    training_only: bool
    sizes: OperatorSizes
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    read: float = 0.0
    written: float = 0.0
    backward_bytes: float = 0.0
    parameter_bytes: float = 0.0
    saved: float = 0.0
    forward_kernels: float = 0.0
    backward_kernels: float = 0.0
    recomputed_flops: float = 0.0
    recomputed_kernels: float = 0.0
    tensor_core: bool = False


@dataclass
class _Pending:
    """Costs of operators that only prepare the next one: casts of weights, masks, counters in buffers."""

    read: float = 0.0
    written: float = 0.0
    kernels: float = 0.0
    storages: set[int] = field(default_factory=set)


class Recorder(TorchDispatchMode):
    """A dispatch mode that builds `Node`s while a step runs.

    A backward operator belongs to the forward operator whose autograd node runs it, and that of a view to the operator
    that produced the tensor; one that recomputes a checkpointed block belongs to the operator that it repeats. Sums of
    gradients that arrive from several consumers belong to the consumer whose node adds them.

    Args:
        model: root module on `meta`.
        batch: resident inputs; they count as live, and have no producer.
        layer_of: index of the atomic layer of each parameter, by `id`.
        tf32: whether tensor cores may execute FP32 products.

    Attributes:
        nodes: recorded operators.
        edges: bytes by (source, target).
        active, in_backward: set by the caller as the step proceeds.
        unknown: count of each operator without a canonical kind.
        selections: number of operators that select elements by value.
        absent: see `DeviceFunctions`.
        stray: backward operators of autograd nodes without a known operator; they belong to the one that ran before.
        live: live tensors, without parameters, buffers and gradients.
    """

    def __init__(self, model: nn.Module, batch: Any, layer_of: dict[int, int], tf32: bool = False) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.edges: dict[tuple[int, int], float] = {}
        self.unknown: dict[str, int] = {}
        self.selections = 0
        self.absent: set[str] = set()
        self.stray = 0
        self.active = True
        self.in_backward = False
        self._model = model
        self._tf32 = tf32
        self._layer_of = layer_of
        self._weights = {id(parameter): parameter for parameter in model.parameters()}
        self._parameters: dict[int, list[nn.Parameter]] = {}
        for parameter in model.parameters():
            self._parameters.setdefault(_key(parameter), []).append(parameter)
        # Kept alive: a forward pass may replace a buffer or a parameter's data, and no address may be reused.
        self._resident = [t.untyped_storage() for t in (*model.parameters(), *model.buffers())]
        self._buffers = {_key(buffer) for buffer in model.buffers()}
        self._counted: set[int] = set()
        self._kept: set[int] = set()
        self._producer: dict[int, int] = {}
        self._origin: dict[int, int] = {}
        self._owner: dict[int, int] = {}
        self._unclaimed: tuple[int, list[Tensor]] | None = None
        self._latest = 0
        self._by_place: dict[tuple[str, str], list[int]] = {}
        self._repeated: dict[tuple[str, str], int] = {}
        self._pending = _Pending()
        self._paths: list[str] = []
        self._autograd_nodes: dict[int, Any] = {}
        self.live = LiveBytes((self._parameters, self._buffers), self._free)
        self._inputs = set()
        for tensor in tensors_of(batch):
            self._inputs.add(_key(tensor))
            self._allocate(tensor)

    @contextmanager
    def watching(self) -> Iterator[Recorder]:
        """Record while the block runs, with hooks that track module names and gradients."""
        handles: list[Any] = []
        try:
            for name, module in self._model.named_modules():
                handles.append(module.register_forward_pre_hook(self._enter(name)))
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            for parameter in self._model.parameters():
                if parameter.requires_grad:
                    handles.append(parameter.register_post_accumulate_grad_hook(self._gradient))
            with self:
                yield self
        finally:
            for handle in handles:
                handle.remove()
            self._unclaimed = None
            self._free_autograd_nodes()

    def mark_forward_end(self) -> None:
        """Attribute all live tensors, which are saved for the backward pass, to the operators that produced them."""
        self._claim()
        for key, size in self.live.sizes.items():
            if key in self._origin and key not in self._kept:
                self._kept.add(key)
                self.nodes[self._origin[key]].saved += size
        self._repeated.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Function modes have already handled the call; querying shapes below through them would take half the time.
        with torch._C.DisableTorchFunction():
            if torch.is_inference_mode_enabled():
                # Composite operators such as `linear`, which have no FLOPs of their own, then arrive whole.
                with self:
                    out = func.decompose(*args, **kwargs)
                if out is not NotImplemented:
                    return out
            self._claim()
            out = meta_cache.run(func, args, kwargs)
            if self.active:
                self._record(func, args, kwargs, out)
        return out

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        inputs = {_key(t): t for t in tensors_of((args, kwargs))}
        for key, tensor in inputs.items():
            if id(tensor) in self._weights and key not in self._parameters:
                self._replace(key, self._weights[id(tensor)])
        outputs = results_of(func, args, kwargs, out)
        if not outputs:
            return
        # `squeeze_` and the like change a tensor's shape only.
        mutates = func._schema.is_mutable and torch.Tag.inplace_view not in func.tags
        if not mutates and all(_key(t) in inputs for t in outputs):
            producer = self._producer.get(_key(outputs[0]))
            if producer is not None:
                self._unclaimed = producer, outputs
            return  # a view
        for tensor in outputs:
            self._allocate(tensor)
        autograd_node = torch._C._current_autograd_node()
        if packet_name(func) in ("detach", "lift_fresh", "alias"):
            return
        self.selections += not self.in_backward and selects(packet_name(func), args)
        cost = cost_of(func, args, kwargs, out, self._tf32)
        if autograd_node is not None:
            self._autograd_nodes[id(autograd_node)] = autograd_node
            # A checkpointed block runs again, or gradients get gradients; functions in Python run without any.
            again = torch.is_grad_enabled() or (self.in_backward and bool(self._paths))
            index = self._backward(cost, autograd_node, again)
            if again:
                self._unclaimed = index, outputs
        elif not self.in_backward:  # otherwise it is the gradient of the loss, a constant 1
            self._forward(cost, inputs, lambda: sizes_of(func, cost.kind, args, kwargs, out))

    def _replace(self, key: int, parameter: nn.Parameter) -> None:
        """A forward pass has replaced a parameter's data by a tensor with that key, which is no activation then."""
        self._parameters[key] = [parameter]
        self._origin.pop(key, None)
        self.live.drop(key)

    def _forward(self, cost: Cost, inputs: dict[int, Tensor], sizes: Callable[[], OperatorSizes]) -> None:
        outputs = [_key(t) for t in cost.outputs]
        producers = {self._producer[key] for key in inputs if key in self._producer}
        parameters = [p for key in inputs for p in self._parameters.get(key, ())]
        if cost.kind == "fill" or (not producers and self._prepares(cost, inputs, outputs, parameters)):
            self._hold(cost, outputs, parameters)
            return
        if producers and (cost.kind == "cast" or cost.name == "clone"):
            # A change of type or layout counts for the operator that produced the tensor.
            index = max(producers)
            node = self.nodes[index]
        else:
            if not cost.known:
                self.unknown[cost.name] = self.unknown.get(cost.name, 0) + 1
            index = self._new_node(cost, inputs, parameters, producers, sizes())
            node = self.nodes[index]
            for key, tensor in inputs.items():
                if key in self._producer:
                    pair = (self._producer[key], index)
                    self.edges[pair] = self.edges.get(pair, 0.0) + tensor_bytes(tensor)
        node.read += cost.read
        node.written += cost.written
        node.forward_kernels += cost.kernels
        node.forward_flops += cost.flops
        self._unclaimed = index, cost.outputs
        for key in outputs:
            self._producer[key] = self._origin[key] = index

    def _prepares(
        self, cost: Cost, inputs: dict[int, Tensor], outputs: list[int], parameters: list[nn.Parameter]
    ) -> bool:
        if cost.kind == "cast" or all(key in self._buffers for key in outputs):
            return True
        return not parameters and not self._inputs & set(inputs) and cost.flops == 0

    def _hold(self, cost: Cost, outputs: list[int], parameters: list[nn.Parameter]) -> None:
        pending = self._pending
        pending.read += cost.read
        pending.written += cost.written
        pending.kernels += cost.kernels
        pending.storages.update(outputs)
        for key in outputs:
            if parameters:
                self._parameters[key] = parameters
            elif cost.kind == "cast":
                self._inputs.add(key)

    def _new_node(
        self,
        cost: Cost,
        inputs: dict[int, Tensor],
        parameters: list[nn.Parameter],
        producers: set[int],
        sizes: OperatorSizes,
    ) -> int:
        index = len(self.nodes)
        if index >= MAX_OPERATORS:
            raise LimitError("the model has too many operators", expected=f"at most {MAX_OPERATORS}")
        layer = max((self._layer_of.get(id(p), -1) for p in parameters), default=-1)
        if layer < 0:
            layer = max((self.nodes[p].layer for p in producers), default=-1)
        first = cost.outputs[0]
        kind = "linear" if cost.kind == "matmul" and parameters else cost.kind
        path = self._paths[-1] if self._paths else ""
        node = Node(
            kind,
            path,
            layer,
            tuple(first.shape),
            _type(first),
            _type(next((t for key, t in inputs.items() if key not in self._parameters), None)),
            _type(next((t for key, t in inputs.items() if key in self._parameters), None)),
            # Operators on the model's results outside all modules are its loss.
            training_only=kind in ("dropout", "loss") or (not self._paths and bool(producers)),
            sizes=sizes,
            tensor_core=cost.tensor_core,
        )
        for parameter in parameters:
            if id(parameter) not in self._counted:
                self._counted.add(id(parameter))
                node.parameter_bytes += parameter.numel() * parameter.element_size()
        pending, self._pending = self._pending, _Pending()
        node.read, node.written = pending.read, pending.written
        node.forward_kernels = pending.kernels
        for key in pending.storages:
            self._origin[key] = index
        self._by_place.setdefault((path, cost.name), []).append(index)
        self.nodes.append(node)
        return index

    def _claim(self) -> None:
        """Attribute autograd nodes to the latest operator: those of its results, and those behind them without an owner.

        A node is only known once the operator has returned. Behind it may be nodes of views and casts of parameters,
        and, for an operator in place on a view, the node that writes into the viewed tensor (`CopySlices`).
        """
        if self._unclaimed is None:
            return
        (index, outputs), self._unclaimed = self._unclaimed, None
        nodes = [tensor.grad_fn for tensor in outputs]
        while nodes:
            node = nodes.pop()
            if node is not None and (key := _node_key(node)) not in self._owner:
                self._owner[key] = index
                nodes += [following for following, _ in node.next_functions]

    def _backward(self, cost: Cost, autograd_node: Any, again: bool) -> int:
        """Add the cost to the operator that it belongs to, and return the index of that."""
        if not self.nodes:
            return 0
        index = self._repeats(cost) if again else None
        if index is None:
            index = self._owner.get(_node_key(autograd_node))
        if index is None:
            self.stray += 1
            index = self._latest
        self._latest = index
        node = self.nodes[index]
        if not cost.known and not cost.name.endswith("backward_data"):
            self.unknown[cost.name] = self.unknown.get(cost.name, 0) + 1
        node.backward_flops += cost.flops
        node.backward_bytes += cost.read + cost.written
        node.backward_kernels += cost.kernels
        if again and self.in_backward:
            node.recomputed_flops += cost.flops
            node.recomputed_kernels += cost.kernels
        return index

    def _repeats(self, cost: Cost) -> int | None:
        """Index of the operator that a recomputation repeats: the next with that name in that module; None if unknown."""
        place = (self._paths[-1] if self._paths else "", cost.name)
        known = self._by_place.get(place)
        if not known:
            return None
        count = self._repeated.get(place, 0)
        self._repeated[place] = count + 1
        return known[count % len(known)]

    def _allocate(self, tensor: Tensor) -> None:
        if self.live.add(tensor):
            # The address of a freed storage may be reused.
            self._producer.pop(_key(tensor), None)
            self._origin.pop(_key(tensor), None)

    def _free(self, key: int) -> None:
        self._producer.pop(key, None)
        self._origin.pop(key, None)
        self._inputs.discard(key)
        self._kept.discard(key)
        self._parameters.pop(key, None)
        self._pending.storages.discard(key)

    def _gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.live.drop(_key(parameter.grad))

    def _free_autograd_nodes(self) -> None:
        """Release the autograd nodes one by one, in the order in which they ran.

        A node referenced from Python frees its predecessors recursively in native code, and some 60,000 of them
        overflow a stack of 8 MiB. If all are held until the loss is gone and then released from its side, none frees
        another.
        """
        for key in list(self._autograd_nodes):
            del self._autograd_nodes[key]

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            self._paths.append(name)

        return enter

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        self._paths.pop()


def _key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _node_key(autograd_node: Any) -> int:
    """Identifies an autograd node: by its number, or by the parameter whose gradient it accumulates."""
    variable = getattr(autograd_node, "variable", None)
    return int(autograd_node._sequence_nr()) if variable is None else -id(variable)


def _type(tensor: Tensor | None) -> str:
    return "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
