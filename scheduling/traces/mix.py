"""Assigns models to trace jobs without one, by a seeded draw from a documented mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiling.errors import InputError
from profiling.workload import Workload

# Shares of image classification, language, recommendation and generation, after the model families named in
# public cluster studies; the exact shares are ours.
ZOO_MIX: tuple[tuple[str, float], ...] = (
    ("resnet18-cifar:batch_size=128", 0.18),
    ("resnet50-imagenet:batch_size=32", 0.16),
    ("mobilenetv2-cifar:batch_size=128", 0.10),
    ("vgg11-cifar:batch_size=128", 0.10),
    ("efficientnetb0-cifar:batch_size=64", 0.08),
    ("lstm-wikitext2:batch_size=20", 0.12),
    ("transformer-multi30k:batch_size=64", 0.12),
    ("neumf-ml1m:batch_size=1024", 0.08),
    ("dcgan-64:batch_size=64", 0.06),
)


@dataclass(frozen=True)
class Mix:
    """Workloads with their shares, and the step time that turns a duration into iterations.

    Attributes:
        workloads, shares: of the same length; shares sum to 1.
        step_time_s: seconds per step alone on the reference device.
        any_batch: whether workloads run with any batch size, or only with those in the mix.
    """

    workloads: tuple[Workload, ...]
    shares: tuple[float, ...]
    step_time_s: Callable[[Workload], float]
    any_batch: bool = False

    def __post_init__(self) -> None:
        if not self.workloads or len(self.workloads) != len(self.shares):
            raise InputError("a mix needs one share per workload", got=f"{len(self.workloads)} workloads")
        if min(self.shares) < 0 or abs(sum(self.shares) - 1.0) > 1e-6:
            raise InputError("shares of a mix", expected="numbers from 0 that sum to 1", got=sum(self.shares))

    def draw(self, count: int, seed: int) -> list[Workload]:
        """`count` workloads."""
        picks = np.random.default_rng(seed).choice(len(self.workloads), count, p=np.array(self.shares))
        return [self.workloads[k] for k in picks]

    def batch_sizes(self, workload: Workload, largest: int) -> list[int]:
        """Samples per GPU that `workload` can run with, up to `largest`.

        They are those in the mix, or powers of two times its own.
        """
        own = workload.batch_size
        if own is None:
            return []
        if self.any_batch:
            sizes = [own * 2**k if k >= 0 else own // 2**-k for k in range(-3, 8)]
        else:
            alike = (w for w in self.workloads if replace(w, batch_size=own) == workload)
            sizes = [w.batch_size for w in alike if w.batch_size is not None]
        return [size for size in sizes if 1 <= size <= largest]

    @classmethod
    def zoo(cls, step_time_s: Callable[[Workload], float]) -> Mix:
        """The documented mix of zoo models."""
        total = sum(share for _, share in ZOO_MIX)
        return cls(
            tuple(Workload.parse(spec) for spec, _ in ZOO_MIX),
            tuple(share / total for _, share in ZOO_MIX),
            step_time_s,
            any_batch=True,
        )

    @classmethod
    def even(cls, workloads: Sequence[Workload], step_time_s: Callable[[Workload], float]) -> Mix:
        """Every workload with the same share."""
        return cls(tuple(workloads), (1.0 / len(workloads),) * len(workloads), step_time_s)
