"""`ZooModel`: name and defaults of a model of the zoo; `ZooEntry`: those with the code that builds it."""

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
    """What can be said of a model of the zoo without building it.

    Attributes:
        name: kebab-case `<model>-<dataset or size>`.
        family: file of the zoo that holds it.
        batch_size, optimizer: defaults.
        parameters: expected number of parameters.
        source: where that number is from.
        description: one line.
        sequence_length: default tokens (or frames) per sample; None where there is no such thing.
        processes: processes that share the GPU for one job; a graph is the step of one of them.
    """

    name: str
    family: str
    batch_size: int
    optimizer: str
    parameters: int
    source: str
    description: str
    sequence_length: int | None = None
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
            `sequence_length` is 0 where the model has none.
        phases: what one training step does.
    """

    model: Callable[[], nn.Module]
    batch: Callable[[int, int], Any]
    phases: tuple[Phase, ...]
