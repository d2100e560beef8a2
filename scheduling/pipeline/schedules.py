"""Order in which each worker of a pipeline runs forwards and backwards.

* `gpipe`: all forwards, then all backwards (Huang et al., NeurIPS 2019).
* `1f1b`: one forward, one backward after a warm-up (Narayanan et al., SOSP 2019; flushed as in Megatron-LM).
* `interleaved`: the same with several chunks of the model on each worker (Narayanan et al., SC 2021).
* `zb-h1`: `1f1b` with weight gradients delayed to fill the bubble (Qi et al., "Zero Bubble Pipeline
  Parallelism", ICLR 2024), with the memory of `1f1b`.
* `pipedream`: `1f1b` without flush, with replicated stages, each minibatch on one replica (SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.errors import InputError, UnknownNameError

SCHEDULES = ("pipedream", "gpipe", "1f1b", "interleaved", "zb-h1")
MAX_MICROBATCHES = 1024
"""Every action of every microbatch is simulated."""


@dataclass(frozen=True, slots=True)
class Action:
    """`F` forward, `B` backward (`zb-h1`: its input-gradient half), `W` weight gradient of one microbatch.

    `stage` numbers the model's parts in order; with `interleaved` a worker has several.
    """

    kind: str
    microbatch: int
    stage: int


def check_schedule(name: str) -> None:
    """Raise `UnknownNameError` if it is none of `SCHEDULES`."""
    if name not in SCHEDULES:
        raise UnknownNameError("unknown schedule", expected="one of " + ", ".join(SCHEDULES), got=name)


def check_counts(**counts: int) -> None:
    """Reject invalid numbers of stages, microbatches or chunks.

    The argument's name states what is counted.
    """
    for name, value in counts.items():
        most = MAX_MICROBATCHES if name == "microbatches" else None
        if not isinstance(value, int) or value < 1 or (most is not None and value > most):
            raise InputError(
                f"number of {name} is out of range",
                expected=f"an integer from 1 to {most}" if most else "an integer from 1",
                got=value,
            )


def worker_orders(
    schedule: str, stages: int, microbatches: int, *, chunks: int = 1, replicas: Sequence[int] | None = None
) -> list[list[Action]]:
    """One list of actions per worker, in stage order (replicas of a stage adjacent).

    Args:
        schedule: one of `SCHEDULES`.
        stages: pipeline depth in workers; with `interleaved` the model has `stages * chunks` parts.
        microbatches: per step.
        chunks: parts of the model on each worker.
        replicas: workers of each stage, `pipedream` only.

    Raises:
        InputError: a count is out of range; `interleaved` needs microbatches in multiples of the depth.
    """
    check_schedule(schedule)
    check_counts(stages=stages, microbatches=microbatches, chunks=chunks)
    if schedule == "gpipe":
        return [_all_then_all(stage, microbatches) for stage in range(stages)]
    if schedule == "1f1b":
        return [_in_turn(stage, range(microbatches), stages - 1 - stage) for stage in range(stages)]
    if schedule == "zb-h1":
        return [_weight_gradients_later(stage, stages, microbatches) for stage in range(stages)]
    if schedule == "interleaved":
        if microbatches % stages:
            raise InputError(
                "an interleaved schedule needs complete rounds of microbatches",
                expected=f"microbatches in multiples of the {stages} workers in a row",
                got=microbatches,
            )
        return [_interleaved(rank, stages, microbatches, chunks) for rank in range(stages)]
    counts = list(replicas or [1] * stages)
    if len(counts) != stages or min(counts) < 1:
        raise InputError("replicas do not fit", expected=f"{stages} counts from 1", got=counts)
    orders = []
    for stage, count in enumerate(counts):
        for replica in range(count):
            mine = range(replica, microbatches, count)
            orders.append(_in_turn(stage, mine, warm_up(counts, stage)))
    return orders


def warm_up(replicas: Sequence[int], stage: int) -> int:
    """Forwards that a replica runs before its first backward.

    They are floor((N - 1 - workers before) / own replicas).
    """
    return (sum(replicas) - 1 - sum(replicas[:stage])) // replicas[stage]


def _all_then_all(stage: int, microbatches: int) -> list[Action]:
    return [Action(kind, mb, stage) for kind in "FB" for mb in range(microbatches)]


def _in_turn(stage: int, microbatches: Sequence[int], ahead: int) -> list[Action]:
    order = [Action("F", mb, stage) for mb in microbatches[:ahead]]
    for index, mb in enumerate(microbatches[ahead:]):
        order += [Action("F", mb, stage), Action("B", microbatches[index], stage)]
    return order + [Action("B", mb, stage) for mb in microbatches[max(len(microbatches) - ahead, 0) :]]


def _weight_gradients_later(stage: int, stages: int, microbatches: int) -> list[Action]:
    # A stage lags by one weight gradient per earlier stage, so its activations add up to the peak of 1f1b.
    order: list[Action] = []
    done = 0
    for action in _in_turn(stage, range(microbatches), stages - 1 - stage):
        order.append(action)
        if action.kind == "B" and action.microbatch >= stage:
            order.append(Action("W", done, stage))
            done += 1
    return order + [Action("W", mb, stage) for mb in range(done, microbatches)]


def _interleaved(rank: int, depth: int, microbatches: int, chunks: int) -> list[Action]:
    total = microbatches * chunks

    def action(kind: str, index: int) -> Action:
        chunk = index // depth % chunks
        chunk = chunk if kind == "F" else chunks - 1 - chunk
        return Action(kind, index // (depth * chunks) * depth + index % depth, chunk * depth + rank)

    ahead = min(total, (depth - 1 - rank) * 2 + (chunks - 1) * depth) if chunks > 1 else depth - 1 - rank
    ahead = min(ahead, total)
    order = [action("F", i) for i in range(ahead)]
    for index in range(total - ahead):
        order += [action("F", ahead + index), action("B", index)]
    return order + [action("B", i) for i in range(total - ahead, total)]
