"""MIG: slices of a card as device types (`a100:mig=3g`), and the partitions that the vendor allows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from profiling.devices.spec import DeviceSpec
from profiling.errors import InputError, UnknownNameError

MIG_OPTION = ":mig="
VARIANT = r"(?:[.+-](?:me(?:\.all)?|gfx))?"
"""Pattern of what a profile's name ends in if the slice differs in media engines or graphics only: `+me`, `+me.all`,
`-me`, `+gfx`; Kubernetes writes a point for the plus."""
# Peak rates that scale with the number of multiprocessors.
_RATES = (
    "fp32_flops",
    "tf32_flops",
    "fp16_flops",
    "bf16_flops",
    "fp64_flops",
    "fp8_flops",
    "fp64_cuda_flops",
    "fp16_cuda_flops",
    "bf16_cuda_flops",
    "fp32_matrix_flops",
)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One kind of slice of a card.

    Attributes:
        name: the vendor's name, e.g. `3g.20gb`.
        short: name within a device name: `3g`; for a slice with extra memory, the vendor's name.
        compute_slices, memory_slices: how many of the card's (7 and 8 on an A100) it has.
        starts: memory slots at which it may start.
    """

    name: str
    short: str
    compute_slices: int
    memory_slices: int
    sm_count: int
    memory_bytes: float
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A partitioned card: (first memory slot, profile) of each slice, in slot order."""

    placements: tuple[tuple[int, MigProfile], ...]

    @property
    def profiles(self) -> tuple[MigProfile, ...]:
        """Profiles of its slices, largest first."""
        return tuple(sorted((p for _, p in self.placements), key=_size, reverse=True))

    def __str__(self) -> str:
        return "+".join(profile.short for profile in self.profiles)


def _size(profile: MigProfile) -> tuple[int, int]:
    return profile.compute_slices, profile.memory_slices


# Compared by identity, because there is one per card.
@dataclass(frozen=True, eq=False)
class MigLayout:
    """Possible partitions of a card.

    Attributes:
        card: catalogue name.
        slots: number of memory slices.
        compute_slices: maximum of all slices together.
        profiles: profiles, smallest first.
        source: the vendor's documents.
    """

    card: str
    slots: int
    compute_slices: int
    profiles: tuple[MigProfile, ...]
    source: str

    def profile(self, name: str) -> MigProfile:
        """The profile with that short (`3g`) or full name (`3g.20gb`, with or without a `VARIANT`).

        Raises:
            UnknownNameError: the card has no such slice.
        """
        wanted = re.sub(f"{VARIANT}$", "", name.strip().lower(), count=1)
        for profile in self.profiles:
            if wanted in (profile.short, profile.name):
                return profile
        raise UnknownNameError(
            f"{self.card} has no MIG slice {name!r}",
            expected="one of " + ", ".join(p.short for p in self.profiles),
        )

    def device(self, profile: MigProfile) -> str:
        """Name of a slice as a device type: `a100:mig=3g`."""
        return f"{self.card}{MIG_OPTION}{profile.short}"

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Names of all slices, in the order of `profiles`."""
        return tuple(map(self.device, self.profiles))

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """Every combination of slices, each in one placement; fewer and larger slices first.

        Slots may stay empty; `maximal` has no such partitions.
        """
        distinct: dict[tuple[str, ...], Partition] = {}
        for placements in self._placements(0, self.compute_slices):
            partition = Partition(placements)
            distinct.setdefault(tuple(p.name for p in partition.profiles), partition)
        distinct.pop((), None)
        return tuple(
            sorted(
                distinct.values(),
                key=lambda p: (len(p.placements), [(-c, -m) for c, m in map(_size, p.profiles)]),
            )
        )

    @cached_property
    def maximal(self) -> tuple[Partition, ...]:
        """Partitions in which, in any placement, no slice can be added or enlarged."""
        return tuple(
            partition
            for partition in self.partitions
            if not any(
                _covers(other.profiles, partition.profiles)
                for other in self.partitions
                if other is not partition
            )
        )

    def useful(self, jobs: int) -> tuple[Partition, ...]:
        """The partitions of `maximal` that can be best for `jobs` jobs.

        The `jobs` largest slices of the others are each no larger than those of some partition kept.
        """
        if jobs not in self._useful:
            largest = {partition: partition.profiles[:jobs] for partition in self.maximal}
            kept: list[Partition] = []
            for partition in self.maximal:
                if not any(_covers(largest[other], largest[partition]) for other in kept):
                    kept = [other for other in kept if not _covers(largest[partition], largest[other])]
                    kept.append(partition)
            self._useful[jobs] = tuple(kept)
        return self._useful[jobs]

    @cached_property
    def _useful(self) -> dict[int, tuple[Partition, ...]]:
        return {}

    def place(self, names: list[str]) -> Partition | None:
        """A placement of slices with these names; None if the card does not support the combination."""
        wanted = tuple(sorted((self.profile(name) for name in names), key=_size, reverse=True))
        for partition in self.partitions:
            if partition.profiles == wanted:
                return partition
        return None

    def _placements(self, slot: int, compute: int) -> Iterator[tuple[tuple[int, MigProfile], ...]]:
        if slot >= self.slots:
            yield ()
            return
        for profile in self.profiles:
            if slot in profile.starts and profile.compute_slices <= compute:
                for rest in self._placements(slot + profile.memory_slices, compute - profile.compute_slices):
                    yield ((slot, profile), *rest)
        yield from self._placements(slot + 1, compute)


def _covers(larger: Sequence[MigProfile], smaller: Sequence[MigProfile]) -> bool:
    """Whether each slice of `smaller` can be matched to a distinct slice of `larger` that is no smaller."""
    if len(larger) < len(smaller):
        return False
    available = list(larger)
    for profile in smaller:
        fits = [
            other
            for other in available
            if other.compute_slices >= profile.compute_slices
            and other.memory_slices >= profile.memory_slices
            and other.sm_count >= profile.sm_count
        ]
        if not fits:
            return False
        available.remove(min(fits, key=_size))
    return True


@lru_cache(maxsize=1)
def _layouts() -> dict[str, MigLayout]:
    with Path(__file__).with_name("mig.toml").open("rb") as stream:
        body = tomllib.load(stream)
    known = {}
    for card, row in body["cards"].items():
        layout = body["layouts"][row["layout"]]
        profiles = tuple(
            MigProfile(
                profile["name"],
                profile["name"] if key.endswith("-double") else key,
                int(key[0]),
                layout["profiles"][key]["memory_slices"],
                profile["sm_count"],
                profile["memory_gib"] * 2.0**30,
                tuple(layout["profiles"][key]["starts"]),
            )
            for key, profile in row["profiles"].items()
        )
        for name in (card, *row.get("same_as_this", ())):
            known[name] = MigLayout(name, layout["slots"], layout["compute_slices"], profiles, row["source"])
    return known


def mig_layout(card: str) -> MigLayout:
    """The possible partitions of the card with that catalogue name.

    Raises:
        UnknownNameError: the card has no MIG, or its slices are unknown.
    """
    known = _layouts()
    if card not in known:
        raise UnknownNameError(
            f"unknown MIG slices of {card}", expected="a card with them: " + ", ".join(known)
        )
    return known[card]


def has_mig(card: str) -> bool:
    """Whether slices of that card are known."""
    return card in _layouts()


def check_slices(device: str, jobs: int) -> None:
    """Check that a device can give each of `jobs` jobs its own MIG slice. A slice itself is enough for one job.

    Raises:
        InputError: the card has no MIG, is a slice itself, or has fewer slices.
    """
    card, part = split_device(device)
    if part is not None and jobs == 1:
        return
    if part is not None or not has_mig(card):
        raise InputError(
            f"{device} cannot be partitioned into MIG slices",
            expected="a whole card with MIG: " + ", ".join(_layouts()),
            got=device,
            hint="share it with --sharing time-slice or mps",
        )
    most = mig_layout(card).compute_slices
    if jobs > most:
        raise InputError(
            f"{card} has too few MIG slices",
            expected=f"at most {most} jobs",
            got=f"{jobs} jobs",
            hint=f"cotenant plan slices --device {card} finds a partition, and shares slices if that helps",
        )


def split_device(name: str) -> tuple[str, str | None]:
    """Split `a100:mig=3g` into (`a100`, `3g`); for a whole card, the second is None.

    Raises:
        InputError: what follows the colon is not a slice.
    """
    card, colon, option = name.partition(":")
    if not colon:
        return name, None
    key, equals, value = option.partition("=")
    if key.strip() != "mig" or not equals or not value.strip():
        raise InputError(
            f"device {name!r} has an unknown option", expected="CARD or CARD:mig=SLICE, such as a100:mig=3g"
        )
    return card.strip(), value.strip()


def leaves_slices_open(device: str, sharing: str) -> bool:
    """Whether each job of a set has a slice of its own that `device` does not name: under MIG on a whole card."""
    return sharing == "mig" and split_device(device)[1] is None


@lru_cache(maxsize=256)
def larger_slices(device: str) -> tuple[str, ...]:
    """Slices of the same card with at least as many multiprocessors, bandwidth and memory as a slice, then the card.

    There is none for a device that is no slice.
    """
    card, part = split_device(device)
    if part is None:
        return ()
    layout = mig_layout(card)
    own = layout.profile(part)
    larger = [p for p in layout.profiles if p is not own and _covers((p,), (own,))]
    return (*map(layout.device, larger), card)


def slice_of(card: DeviceSpec, name: str) -> DeviceSpec:
    """A slice as a device type: its multiprocessors and memory, and its share of bandwidth, L2 cache and power limit.

    The link to the host is the card's, because a slice may use all of it while the others are idle. Slices have no
    NVLink.

    Raises:
        UnknownNameError: the card has no such slice.
    """
    layout = mig_layout(card.name)
    profile = layout.profile(name)
    of_memory = profile.memory_slices / layout.slots
    of_compute = profile.sm_count / card.sm_count
    return replace(
        card,
        name=layout.device(profile),
        sm_count=profile.sm_count,
        memory_bytes=profile.memory_bytes,
        memory_bandwidth_bytes_per_s=of_memory * card.memory_bandwidth_bytes_per_s,
        l2_bytes=of_memory * card.l2_bytes,
        nvlink_bytes_per_s=0.0,
        power_limit_w=of_compute * card.power_limit_w,
        mig_profiles=(),
        source=f"{card.source}; slice: {layout.source}",
        **{rate: of_compute * getattr(card, rate) for rate in _RATES},
    )
