"""Simulates a schedule: start and end of every action, the bubble, and what each worker holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.errors import InputError
from scheduling.pipeline.schedules import Action


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of one microbatch in one part of the model.

    Attributes:
        forward_s: forward.
        input_gradient_s, weight_gradient_s: the two halves of the backward.
        send_s: transfer of its activations to the next part (gradients take the same way back).
    """

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    send_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Slot:
    """An action on a worker, from `start_s` to `end_s`."""

    worker: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One step of a pipeline.

    Attributes:
        slots: all actions.
        total_s: end of the last action.
        bubble_s: per worker, idle time.
        peak_in_flight: per worker, most (microbatch, part) pairs whose activations it holds at once.
    """

    slots: tuple[Slot, ...]
    total_s: float
    bubble_s: tuple[float, ...]
    peak_in_flight: tuple[int, ...]

    @property
    def bubble_ratio(self) -> float:
        """Share of all workers' time that is idle."""
        whole = self.total_s * len(self.bubble_s)
        return sum(self.bubble_s) / whole if whole else 0.0


def simulate(orders: Sequence[Sequence[Action]], times: Sequence[StageTimes]) -> Timeline:
    """Run workers' orders: an action starts when its worker is free and its inputs have arrived.

    A forward needs the previous part, a backward its own forward and the next part, a weight gradient its
    backward. Without `W` actions, a backward takes both halves. A worker sends one thing after the other, while it
    computes.

    Raises:
        InputError: the orders wait for each other forever, or name a part without times.
    """
    split = any(action.kind == "W" for order in orders for action in order)
    parts = len(times)
    if any(not 0 <= action.stage < parts for order in orders for action in order):
        raise InputError("an order names a part of the model without times", expected=f"0 to {parts - 1}")
    ends: dict[Action, float] = {}
    arrivals: dict[Action, float] = {}
    free, sent = [0.0] * len(orders), [0.0] * len(orders)
    position = [0] * len(orders)
    slots: list[Slot] = []
    progress = True
    while progress:
        progress = False
        for worker, order in enumerate(orders):
            while position[worker] < len(order):
                action = order[position[worker]]
                ready = _ready(action, ends, arrivals, parts)
                if ready is None:
                    break
                start = max(free[worker], ready)
                ends[action] = free[worker] = start + _duration(action, times, split)
                slots.append(Slot(worker, action, start, free[worker]))
                arrivals[action] = free[worker]
                if send_s := _send_s(action, times):
                    arrivals[action] = sent[worker] = max(free[worker], sent[worker]) + send_s
                position[worker] += 1
                progress = True
    if any(p < len(order) for p, order in zip(position, orders, strict=True)):
        raise InputError("the workers' orders deadlock", expected="a feasible schedule")
    total = max(free, default=0.0)
    busy = [0.0] * len(orders)
    for slot in slots:
        busy[slot.worker] += slot.end_s - slot.start_s
    return Timeline(
        tuple(slots),
        total,
        tuple(total - b for b in busy),
        tuple(sum(fullest(order).values()) for order in orders),
    )


def _ready(
    action: Action, ends: dict[Action, float], arrivals: dict[Action, float], parts: int
) -> float | None:
    kind, mb, stage = action.kind, action.microbatch, action.stage
    if kind == "F":
        if stage == 0:
            return 0.0
        return arrivals.get(Action("F", mb, stage - 1))
    own = ends.get(Action("F" if kind == "B" else "B", mb, stage))
    if own is None or kind == "W" or stage == parts - 1:
        return own
    behind = arrivals.get(Action("B", mb, stage + 1))
    return None if behind is None else max(own, behind)


def _send_s(action: Action, times: Sequence[StageTimes]) -> float:
    """Seconds for which what the action made is on its way to the part that needs it."""
    if action.kind == "F":
        return times[action.stage].send_s if action.stage < len(times) - 1 else 0.0
    return times[action.stage - 1].send_s if action.kind == "B" and action.stage else 0.0


def _duration(action: Action, times: Sequence[StageTimes], split: bool) -> float:
    part = times[action.stage]
    if action.kind == "F":
        return part.forward_s
    if action.kind == "W":
        return part.weight_gradient_s
    return part.input_gradient_s + (0.0 if split else part.weight_gradient_s)


def fullest(order: Sequence[Action]) -> dict[int, int]:
    """Part → microbatches of it that a worker holds when it holds most in all."""
    held: Counter[int] = Counter()
    most: Counter[int] = Counter()
    last = _last(order)
    for action in order:
        held[action.stage] += (action.kind == "F") - (action.kind == last)
        if held.total() > most.total():
            most = held.copy()
    return dict(most)


def peak_held(order: Sequence[Action], kept: Sequence[float], recomputed: Sequence[float]) -> float:
    """Largest amount that a worker holds at once.

    `kept` and `recomputed` are by part, for one microbatch: held from its forward, and from its backward,
    until its last action is done.
    """
    held = peak = 0.0
    last = _last(order)
    for action in order:
        if action.kind == "F":
            held += kept[action.stage]
        if action.kind == "B":
            held += recomputed[action.stage]
        peak = max(peak, held)
        if action.kind == last:
            held -= kept[action.stage] + recomputed[action.stage]
    return peak


def _last(order: Sequence[Action]) -> str:
    """The kind of action after which a microbatch's activations are no longer needed."""
    return "W" if any(action.kind == "W" for action in order) else "B"
