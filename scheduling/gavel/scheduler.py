"""A cluster under Gavel: time received by each job, solution of the program, and assignments."""

from __future__ import annotations

import numpy as np

from predictor.types import Floats
from profiling.devices import get_device
from profiling.errors import UnknownNameError
from scheduling.core.job import Allocation, JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.gavel.config import GavelConfig
from scheduling.gavel.problem import AllocationProblem
from scheduling.gavel.programs import blind_speeds, finish_time_fair, max_min, max_sum
from scheduling.gavel.rounds import Rounds, Unit
from scheduling.gavel.rules import allox, fifo, isolated_speed
from scheduling.gavel.speeds import pair_speeds, solo_speeds
from scheduling.placement.gangs import Pool

_PACK_ABOVE = 1.5  # FIFO: lowest sum of speeds over solo speeds at which two jobs share


class GavelScheduler:
    """One run of one policy.

    Attributes:
        kinds: type numbers of the snapshot, fastest first, in the order in which types are offered (with one
            list for all types: the cluster's order, which breaks ties).
        jobs: jobs present at the last round.
        running: (unit, position in `kinds`) of the last round.
    """

    def __init__(self, snapshot: SchedulingSnapshot, config: GavelConfig) -> None:
        self.config = config
        self.kinds = list(range(len(snapshot.types)))
        if not config.rounds.one_list:
            self.kinds.sort(key=lambda k: -_peak(snapshot.types[k]))
        self.rounds = Rounds(len(self.kinds), config.rounds)
        self.jobs: dict[int, JobState] = {}
        self.alone: dict[int, Floats] = {}
        self.together: dict[tuple[int, int], Floats] = {}
        self.running: list[tuple[Unit, int]] = []
        self.started_s = self.ended_s = self.gap_s = 0.0
        self.refused = self.down = 0
        self.random = np.random.default_rng(config.seed)
        # Finish-time fairness: isolated seconds so far, steps left and isolated speed at the last solution.
        self.isolated: dict[int, tuple[float, float, float]] = {}

    def decide(self, snapshot: SchedulingSnapshot, belief: SetCache) -> list[Allocation]:
        """End the last round and start the next."""
        self._account(snapshot)
        idle = not self.running
        if self.config.rounds.upstream:  # on an idle cluster, the next round waits for a job
            idle &= snapshot.now_s == self.started_s
        self._come_and_go(snapshot, belief)
        if not self.jobs or not snapshot.up:
            self.running = []
            return []
        if self.rounds.due(snapshot.now_s, idle):
            self.rounds.solved(self._shares(snapshot), snapshot.now_s)
        chosen = self._choose(snapshot)
        self.running = chosen
        self.started_s = snapshot.now_s
        return self._place(snapshot, chosen)

    def _account(self, snapshot: SchedulingSnapshot) -> None:
        """Account for the units that ran in the last round, and for how long."""
        ended = self.started_s
        for unit, kind in self.running:
            ends = {}
            for number in unit:
                job = self.jobs[number]
                if job.finished_s is not None:
                    ends[number] = job.finished_s
                elif job.gpus:
                    ends[number] = snapshot.now_s
            if ends:
                ran = unit if len(ends) == len(unit) else tuple(ends)
                end = max(ends.values())
                if self.config.rounds.whole:
                    end = self.started_s + self.config.rounds.round_s
                extra = self.gap_s if self.config.rounds.upstream else 0.0
                self.rounds.ran(ran, kind, end - self.started_s + extra)
                ended = max(ended, end)
        if self.running:
            self.ended_s = ended
        self.gap_s = snapshot.now_s - self.ended_s

    def _come_and_go(self, snapshot: SchedulingSnapshot, belief: SetCache) -> None:
        active = {job.number: job for job in snapshot.active()}
        for number in [n for n in self.jobs if n not in active]:
            self.rounds.go(number)
            del self.jobs[number], self.alone[number]
            self.isolated.pop(number, None)
            self.together = {pair: speed for pair, speed in self.together.items() if number not in pair}
        for number in sorted(active.keys() - self.jobs.keys()):
            job = active[number]
            self.alone[number] = solo_speeds(snapshot, belief, job, self.kinds, self.config.too_small)
            units: list[Unit] = [(number,)]
            if self.config.packed and job.job.preemptible:
                units += self._pairs(snapshot, belief, job)
            self.jobs[number] = job
            self.rounds.come(number, units)
        if len(snapshot.down) != self.down:  # nodes failed or were repaired
            self.down = len(snapshot.down)
            self.rounds.changed = True
        if len(snapshot.refused) > self.refused:  # types on which they are not placed again
            self.refused = len(snapshot.refused)
            for number, job in self.jobs.items():
                self.alone[number] = solo_speeds(snapshot, belief, job, self.kinds, self.config.too_small)
            self.rounds.changed = True
        for pair in [p for p in self.together if any(self.jobs[n].exclusive for n in p)]:
            del self.together[pair]  # they ran out of memory together

    def _pairs(self, snapshot: SchedulingSnapshot, belief: SetCache, job: JobState) -> list[Unit]:
        """Pairs of a new job with those present."""
        mates = [j for j in self.jobs.values() if j.job.gpus == job.job.gpus and j.job.preemptible]
        members = [*mates, job]
        alone = np.stack([self.alone[j.number] for j in members])
        speeds = pair_speeds(
            snapshot, belief, members, alone, [(k, len(mates)) for k in range(len(mates))], self.kinds
        )
        units: list[Unit] = []
        for (mate, _), speed in speeds.items():
            first, second = mates[mate].number, job.number
            unit = (min(first, second), max(first, second))
            self.together[unit] = speed if first < second else speed[:, ::-1]
            units.append(unit)
        return units

    def _shares(self, snapshot: SchedulingSnapshot) -> dict[Unit, Floats]:
        numbers = sorted(self.jobs)
        index = {number: k for k, number in enumerate(numbers)}
        jobs = [self.jobs[n] for n in numbers]
        problem = AllocationProblem.of(
            np.stack([self.alone[n] for n in numbers]),
            [j.job.gpus for j in jobs],
            snapshot.up_of_type[self.kinds].tolist(),
            {(index[a], index[b]): speed for (a, b), speed in self.together.items()},
        )
        x = self._solve(snapshot, problem, jobs)
        if self.config.even:
            x = problem.even(x)
        if self.config.decimals is not None:
            x = x.round(self.config.decimals)
        rows = problem.rows if len(x) == len(problem.rows) else problem.rows[: problem.jobs]
        return {tuple(numbers[k] for k in row): x[r] for r, row in enumerate(rows)}

    def _solve(
        self, snapshot: SchedulingSnapshot, problem: AllocationProblem, jobs: list[JobState]
    ) -> Floats:
        config, now = self.config, snapshot.now_s
        left = np.array([snapshot.left(j) for j in jobs])
        elapsed = np.array([now - j.job.submit_s for j in jobs])
        held = {
            k: int(share.argmax())
            for k, j in enumerate(jobs)
            if (share := self.rounds.shares.get((j.number,))) is not None and share.any()
        }
        if config.objective == "max-min":
            return max_min(problem, np.array([j.job.priority for j in jobs]), config.blind)
        if config.objective == "max-sum":
            ends = {k: j.job.submit_s + j.job.deadline_s for k, j in enumerate(jobs) if j.job.deadline_s}
            return max_sum(
                problem, deadlines={k: left[k] / (end - now) for k, end in ends.items() if end > now}
            )
        if config.objective == "fifo":
            above = _PACK_ABOVE if config.packed else None
            if config.blind:
                return fifo(problem, above, self.random, held)
            return fifo(problem, above)
        if config.objective == "allox":
            return allox(problem, elapsed, left, held)
        if config.blind:
            problem = blind_speeds(problem, 0)
        speed = isolated_speed(problem)
        for k, job in enumerate(jobs):
            before = self.isolated.get(job.number)
            done_s = 0.0 if before is None else before[0]
            if before is not None and before[2] > 0:  # at 0, its types were down
                done_s += (before[1] - left[k]) / before[2]
            self.isolated[job.number] = (done_s, left[k], speed[k])
        with np.errstate(divide="ignore"):
            isolated_s = np.array([self.isolated[j.number][0] for j in jobs]) + left / speed
        return finish_time_fair(problem, elapsed, left, isolated_s)

    def _choose(self, snapshot: SchedulingSnapshot) -> list[tuple[Unit, int]]:
        """The round's units; a non-preemptible job stays where it is."""
        free = snapshot.up_of_type[self.kinds].tolist()
        position = {kind: k for k, kind in enumerate(self.kinds)}
        fixed: list[tuple[Unit, int]] = []
        for number, job in self.jobs.items():
            if job.gpus and not job.job.preemptible:
                kind = position[int(snapshot.type_of[job.gpus[0]])]
                free[kind] -= len(job.gpus)
                fixed.append(((number,), kind))
        busy = {unit[0] for unit, _ in fixed}
        gpus = {unit: self.jobs[unit[0]].job.gpus for unit in self.rounds.received_s}
        speed = {unit: self._speed(unit) for unit in gpus if not busy.intersection(unit)}
        order = range(len(self.kinds))
        if self.config.blind:
            order = self.random.permutation(len(self.kinds)).tolist()
        return fixed + self.rounds.choose(free, gpus, speed, order)

    def _speed(self, unit: Unit) -> list[float]:
        """[W] speed of the slowest member; 0 where the unit cannot run."""
        if len(unit) == 1:
            speeds: list[float] = self.alone[unit[0]].tolist()
            return speeds
        pair = self.together.get((unit[0], unit[1]))
        return [0.0] * len(self.kinds) if pair is None else pair.min(axis=1).tolist()

    def _place(self, snapshot: SchedulingSnapshot, chosen: list[tuple[Unit, int]]) -> list[Allocation]:
        """Units that stay on a type keep their GPUs; the others are placed largest first."""
        placed = (
            self._first_free(snapshot, chosen) if self.config.first_free else self._packed(snapshot, chosen)
        )
        decisions = {j.number: Allocation(j) for j in snapshot.running.values()}
        for unit, held in placed.items():
            for number in unit:
                job = self.jobs[number]
                decisions[number] = Allocation(job, held)
        return [d for d in decisions.values() if d.gpus != d.job.gpus]

    def _packed(
        self, snapshot: SchedulingSnapshot, chosen: list[tuple[Unit, int]]
    ) -> dict[Unit, tuple[int, ...]]:
        """Place units on one node each, if one has room."""
        placed: dict[Unit, tuple[int, ...]] = {}
        claimed: set[int] = set()
        for unit, kind in chosen:
            for number in unit:
                held = self.jobs[number].gpus
                if held and snapshot.type_of[held[0]] == self.kinds[kind] and not claimed.intersection(held):
                    placed[unit] = held
                    claimed.update(held)
                    break
        leaving = {g for job in snapshot.running.values() for g in job.gpus} - claimed
        pool = Pool(snapshot, leaving)
        rest = [(unit, kind) for unit, kind in chosen if unit not in placed]
        for unit, kind in sorted(rest, key=lambda entry: -self.jobs[entry[0][0]].job.gpus):
            placed[unit] = pool.take(self.jobs[unit[0]].job.gpus, self.kinds[kind], scatter=True)
        return placed

    def _first_free(
        self, snapshot: SchedulingSnapshot, chosen: list[tuple[Unit, int]]
    ) -> dict[Unit, tuple[int, ...]]:
        """By size, largest first: units stay if they can; the others take the first free GPUs."""
        bound = [self.jobs[unit[0]] for unit, _ in chosen if not self.jobs[unit[0]].job.preemptible]
        placed: dict[Unit, tuple[int, ...]] = {(job.number,): job.gpus for job in bound if job.gpus}
        claimed = {g for held in placed.values() for g in held} | snapshot.down
        size = {unit: self.jobs[unit[0]].job.gpus for unit, _ in chosen}
        for gpus in sorted(set(size.values()), reverse=True):
            alike = [
                (unit, self.kinds[kind]) for unit, kind in chosen if size[unit] == gpus and unit not in placed
            ]
            for unit, kind in alike:
                held = self.jobs[unit[0]].gpus
                if held and snapshot.type_of[held[0]] == kind and not claimed.intersection(held):
                    placed[unit] = held
                    claimed.update(held)
            for unit, kind in alike:
                if unit not in placed:
                    free = (g for g in np.flatnonzero(snapshot.type_of == kind).tolist() if g not in claimed)
                    placed[unit] = tuple(next(free) for _ in range(gpus))
                    claimed.update(placed[unit])
        return placed


def _peak(device: str) -> float:
    """FP32 peak by the catalogue; unknown types come last, in the cluster's order."""
    try:
        return get_device(device).fp32_flops
    except UnknownNameError:
        return 0.0
