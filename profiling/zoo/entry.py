"""`ZooModel`: name and defaults of a zoo model; `ZooEntry`: also the code that builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiling.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from profiling.training import Phase


@dataclass(frozen=True, kw_only=True)
class ZooModel:
    """Properties of a zoo model that are known without building it.

    Attributes:
        name: kebab-case `<model>-<dataset or size>`.
        family: file of the zoo that holds it.
        batch_size, optimizer: defaults.
        parameters: expected number of parameters.
        source: reference for that number.
        description: one line.
        sequence_length: default tokens (or frames) per sample; None if the model has no sequences.
        longest_sequence: most tokens that the model has positions for; None if it has no such limit.
        processes: processes per job that share the GPU; a graph covers the step of one process.
    """

    name: str
    family: str
    batch_size: int
    optimizer: str
    parameters: int
    source: str
    description: str
    sequence_length: int | None = None
    longest_sequence: int | None = None
    processes: int = 1

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise InputError(f"{self.name}: processes", expected="at least 1", got=self.processes)


@dataclass(frozen=True, kw_only=True)
class ZooEntry(ZooModel):
    """One model with its training task.

    Attributes:
        model: builds the root module on the current default device.
        batch: `(batch_size, sequence_length) -> batch` of random tensors on the current default device;
            `sequence_length` is 0 if the model has none.
        phases: what one training step does.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int, int], Any]
    phases: tuple[Phase, ...]
