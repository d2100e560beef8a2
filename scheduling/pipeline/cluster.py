"""The machines that a pipeline is planned for, and options of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiling.errors import InfeasibleError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduling.pipeline.states import StateSpace

MAX_WORKERS = 4096
MAX_BANDWIDTH_BYTES_PER_S = 1e18


@dataclass(frozen=True, slots=True)
class PipelineCluster:
    """Workers in nested groups, innermost first.

    Attributes:
        workers: group sizes; `(4, 8)` is 8 machines of 4 workers each.
        bandwidth_bytes_per_s: one bandwidth per level, between the members of a group of that level.
        memory_bytes: device memory of one worker; None for no limit.
    """

    workers: tuple[int, ...]
    bandwidth_bytes_per_s: tuple[float, ...]
    memory_bytes: float | None = None

    def __post_init__(self) -> None:
        if not self.workers or len(self.workers) != len(self.bandwidth_bytes_per_s):
            raise InputError(
                "workers and bandwidths have different lengths",
                expected="one bandwidth for each number of workers, innermost first",
                got=f"{len(self.workers)} numbers of workers and {len(self.bandwidth_bytes_per_s)} bandwidths",
            )
        for count in self.workers:
            if not isinstance(count, int) or count < 1:
                raise InputError("number of workers is out of range", expected="an integer from 1", got=count)
        if self.total > MAX_WORKERS:
            raise InputError(
                "too many workers", expected=f"at most {MAX_WORKERS} in all levels together", got=self.total
            )
        for value in self.bandwidth_bytes_per_s:
            if not 1 <= value <= MAX_BANDWIDTH_BYTES_PER_S:
                raise InputError(
                    "bandwidth is out of range",
                    expected=f"bytes per second from 1 to {MAX_BANDWIDTH_BYTES_PER_S:g}",
                    got=value,
                )
        if self.memory_bytes is not None and not self.memory_bytes > 0:
            raise InputError("memory limit is out of range", expected="bytes above 0", got=self.memory_bytes)

    @property
    def total(self) -> int:
        return math.prod(self.workers)

    def inside(self, level: int) -> int:
        """Workers in one member of a group of `level`."""
        return math.prod(self.workers[:level])

    def behind(self, level: int, after: int, used: int, own: int) -> int:
        """Later workers per replica of a stage: each has a minibatch that the stage must remember.

        Rounding up here does not change the count on the innermost level, where it is rounded up anyway.

        Args:
            level: level of the stage's group.
            after: workers behind the group.
            used: members of the group from the stage on.
            own: members that the stage is replicated over.
        """
        return -(-((used - own) * self.inside(level - 1) + after) // own)


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """Options of a search.

    Attributes:
        activation_compression_ratio: activations shrink by this factor for transfer (1: not at all); None
            ignores the time of activation transfers, as if it were always hidden by computation.
        straight: no stage is replicated.
        fewer_machines: `compat` only: a part may be computed by fewer workers than it is given. The default
            search always leaves workers idle that would not help.
    """

    activation_compression_ratio: float | None = None
    straight: bool = False
    fewer_machines: bool = False

    def __post_init__(self) -> None:
        ratio = self.activation_compression_ratio
        if ratio is not None and not 1e-6 <= ratio <= 1e6:
            raise InputError(
                "activation compression ratio is out of range",
                expected="a number from 1e-6 to 1e6",
                got=ratio,
            )


@dataclass(frozen=True, slots=True)
class Span:
    """A stage during the search: from boundary `start` to `end`, with its replicas on each level.

    Attributes:
        replicas: copies on each level, innermost first.
        versions: weight versions held, equal to minibatches in flight on one replica.
        memory_bytes: memory of one worker of the stage.
        place: number of the stage on each level, outermost first: `(1, 0)` is the first inside the second.
    """

    start: int
    end: int
    replicas: tuple[int, ...]
    versions: int
    memory_bytes: float
    place: tuple[int, ...] = ()


def devices_of(cluster: PipelineCluster, spans: Sequence[Span]) -> list[tuple[int, ...]]:
    """Device numbers of each stage: neighbours on the innermost level first, groups filled stage by stage."""
    members = {
        span.place[: depth + 1]: own for span in spans for depth, own in enumerate(span.replicas[::-1])
    }
    devices = []
    for span in spans:
        numbers = [0]
        for depth, own in enumerate(span.replicas[::-1]):
            *outside, stage = span.place[: depth + 1]
            before = sum(members[(*outside, earlier)] for earlier in range(stage))
            count = cluster.workers[-1 - depth]
            numbers = [number * count + before + member for number in numbers for member in range(own)]
        devices.append(tuple(numbers))
    return devices


def shortage(space: StateSpace, spans: list[Span], limit_bytes: float) -> InfeasibleError:
    """Error that states which stage of the partition with the lowest memory does not fit, and by how much."""
    number, span = max(enumerate(spans, start=1), key=lambda item: item[1].memory_bytes)
    nodes = space.members(span.start, span.end)
    replicas = math.prod(span.replicas)
    inside = nodes[0] if len(nodes) == 1 else f"{nodes[0]} to {nodes[-1]}, {len(nodes)} nodes"
    return InfeasibleError(
        f"no partition of {space.name} fits: even the smallest needs {span.memory_bytes:.4g} bytes"
        f" on each worker of stage {number} of {len(spans)} ({inside}; {replicas} replica{'s' * (replicas > 1)},"
        f" {span.versions} minibatch{'es' * (span.versions > 1)} in flight), {span.memory_bytes - limit_bytes:.4g} bytes more than there are",
        expected=f"at most {limit_bytes:.4g} bytes",
        hint="raise the memory limit, use smaller minibatches, or split over more workers",
    )
