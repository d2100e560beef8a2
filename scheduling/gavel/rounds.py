"""Gavel's rounds: units run in order of their target share of time over the share received (section 5).

A unit is a job or a pair, named by job numbers. The classes hold no cluster: a caller supplies the
allocation, the present units and how long each ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from predictor.types import Floats
from profiling.errors import InputError

Unit = tuple[int, ...]
_NEVER_RAN = 1e9  # priority of a unit that has received no time: its share times this


@dataclass(frozen=True, slots=True)
class RoundConfig:
    """Configuration of the rounds.

    Attributes:
        round_s: length of a round.
        reset_s: the program is solved again, and received times are reset, if jobs arrived or left and this
            much time has passed since the last reset; 0: solved every round, and times are never reset.
        one_list: all types in one list by priority and then share, without deficits; otherwise type by type.
        whole: a round counts in full for a job that ends in it.
        leftovers: units without a share may take remaining GPUs.
        upstream: three artefacts of the public simulator: a job that arrived since the program was solved
            takes GPUs in the greedy pass but is not run, time in which nothing ran counts as received by the
            next unit to run, and a first solution at time 0 counts as none.
    """

    round_s: float = 360.0
    reset_s: float = 1920.0
    one_list: bool = False
    whole: bool = False
    leftovers: bool = True
    upstream: bool = False

    def __post_init__(self) -> None:
        if not self.round_s > 0 or not self.reset_s >= 0:
            raise InputError(
                "round_s or reset_s is out of range",
                expected="seconds above 0, and from 0",
                got=(self.round_s, self.reset_s),
            )


@dataclass(slots=True, eq=False)
class Rounds:
    """Shares, received times and deficits of all units, over `types` GPU types in the order offered.

    Attributes:
        shares: [types] of each unit, as the program gave them.
        received_s: [types] seconds since the last reset, starting from half a round (pairs added since: from
            0).
        total_s: [types] of all units at the last reset, including those that have left since.
    """

    types: int
    config: RoundConfig = field(default_factory=RoundConfig)
    shares: dict[Unit, Floats] = field(default_factory=dict)
    received_s: dict[Unit, list[float]] = field(default_factory=dict)
    deficits: dict[Unit, list[float]] = field(default_factory=dict)
    total_s: list[float] = field(default_factory=list)
    last_reset_s: float = 0.0
    changed: bool = False

    def __post_init__(self) -> None:
        self.total_s = [0.0] * self.types

    def come(self, job: int, units: Sequence[Unit]) -> None:
        """Add a job; `units` are all that it is a member of (itself alone, and pairs with present jobs)."""
        for unit in units:
            head_start = self.config.round_s / 2 if unit == (job,) else 0.0
            self.received_s[unit] = [head_start] * self.types
            self.deficits[unit] = [0.0] * self.types
        self.changed = True

    def go(self, job: int) -> None:
        """Remove a finished job; the time it received stays in the totals until the next reset."""
        for unit in [u for u in self.received_s if job in u]:
            del self.received_s[unit], self.deficits[unit]
        self.changed = True

    def due(self, now_s: float, idle: bool) -> bool:
        """Whether the program must be solved now; `idle`: nothing ran in the last round."""
        if self.config.reset_s == 0:
            return True
        waited = now_s - self.last_reset_s >= self.config.reset_s
        if self.config.upstream:  # where 0 also means never
            waited |= self.last_reset_s == 0.0
        return self.changed and (waited or idle)

    def solved(self, shares: Mapping[Unit, Floats], now_s: float) -> None:
        """Take the program's answer.

        If times are reset, units that received less than their share are owed the rest.
        """
        if self.config.reset_s == 0:
            for unit, received in self.received_s.items():
                if unit not in self.shares:  # added since then
                    self.total_s = [t + r for t, r in zip(self.total_s, received, strict=True)]
        else:
            elapsed = now_s - self.last_reset_s
            self.total_s = [0.0] * self.types
            for unit, received in self.received_s.items():
                owed = self.shares.get(unit)
                for kind in range(self.types):
                    due = 0.0 if owed is None else float(owed[kind]) * elapsed
                    self.deficits[unit][kind] += due - (received[kind] - self.config.round_s / 2)
                    received[kind] = self.config.round_s / 2
                    self.total_s[kind] += self.config.round_s / 2
            self.last_reset_s = now_s
        self.shares = dict(shares)
        self.changed = False

    def ran(self, unit: Unit, kind: int, seconds: float) -> None:
        """Record that a unit had GPUs of type number `kind` for `seconds`."""
        self.total_s[kind] += seconds
        if unit in self.received_s:
            self.received_s[unit][kind] += seconds

    def priority(self, unit: Unit, kind: int) -> float:
        """Share over the fraction of the type's time that the unit received."""
        share = self.shares.get(unit)
        if share is None or share[kind] <= 0:
            return 0.0
        fraction = self.received_s[unit][kind] / self.total_s[kind]
        return float(share[kind]) / fraction if fraction > 0 else float(share[kind]) * _NEVER_RAN

    def choose(
        self,
        free: Sequence[int],
        gpus: Mapping[Unit, int],
        speed: Mapping[Unit, Sequence[float]],
        order: Sequence[int] | None = None,
    ) -> list[tuple[Unit, int]]:
        """(unit, type) to run in the next round, in the order of the greedy pass.

        Args:
            free: [types] free GPUs.
            gpus: GPUs of each unit.
            speed: [types] of each unit that may run, 0 where it cannot.
            order: order in which types are offered; by number if None.
        """
        place = {kind: k for k, kind in enumerate(range(self.types) if order is None else order)}
        # (position of the type, -priority, -deficit, -share); with one list, type and deficit are ignored.
        entries: list[tuple[int, float, float, float, int, Unit]] = []
        for kind in range(self.types):
            for unit, speeds in speed.items():
                share = self.shares.get(unit)
                priority = self.priority(unit, kind)
                if not speeds[kind] > 0 or (priority <= 0 and not self._takes_leftovers(unit)):
                    continue
                first, deficit = (
                    (0, 0.0) if self.config.one_list else (place[kind], self.deficits[unit][kind])
                )
                own = 0.0 if share is None else float(share[kind])
                entries.append((first, -priority, -deficit, -own, kind, unit))
        entries.sort(key=lambda entry: entry[:4])
        room, busy, chosen = list(free), set[int](), list[tuple[Unit, int]]()
        for *_, kind, unit in entries:
            if room[kind] < gpus[unit] or busy.intersection(unit):
                continue
            room[kind] -= gpus[unit]
            busy.update(unit)
            # Upstream offers GPUs to a job without an allocation and then does not run it.
            if unit in self.shares or not self.config.upstream:
                chosen.append((unit, kind))
        return chosen

    def _takes_leftovers(self, unit: Unit) -> bool:
        """Whether a unit without a share may run; upstream offers remaining GPUs to pairs, too."""
        return self.config.leftovers and (len(unit) == 1 or self.config.upstream)
