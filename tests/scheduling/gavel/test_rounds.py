"""Rounds compared with the public traces: priorities and running jobs, given the recorded allocations."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from scheduling.gavel.rounds import RoundConfig, Rounds, Unit
from tests.shared import shared_data

TYPES = ("v100", "p100", "k80")


def runs() -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    try:
        body = json.loads(shared_data("gavel", "round_cases.json").read_text())
    except pytest.skip.Exception:
        return []
    return [(body, trace, run) for trace in body["traces"] for run in trace["runs"]]


RUNS = runs()


class Replay:
    """Upstream's loop around `Rounds`: decides at the end of each round, which ends with its longest job."""

    def __init__(self, body: dict[str, Any], trace: dict[str, Any], run: dict[str, Any]) -> None:
        self.body, self.trace, self.run = body, trace, run
        self.packed = run["policy"].endswith("packed")
        fifo = run["policy"].startswith("fifo")
        config = RoundConfig(trace["round_s"], trace["allocation_reset_s"], leftovers=not fifo, upstream=True)
        self.rounds = Rounds(3, config)
        self.jobs = trace["jobs"]
        self.left = {j: float(job["steps"]) for j, job in enumerate(self.jobs)}
        self.here: list[int] = []
        self.came = 0
        self.ended: dict[int, float] = {}
        self.last_end_s = 0.0

    def solo(self, job: int) -> list[float]:
        kind = self.jobs[job]
        table = self.body[f"throughputs_scale{kind['scale']}"][kind["type"]]
        return [table[t] for t in TYPES]

    def speed(self, unit: Unit) -> dict[int, list[float]]:
        factor = 0.7 if len(unit) == 2 else 1.0
        return {j: [factor * v for v in self.solo(j)] for j in unit}

    def arrive(self, now: float) -> None:
        while self.came < len(self.jobs) and self.jobs[self.came]["arrival_s"] <= now:
            job = self.came
            units: list[Unit] = [(job,)]
            if self.packed:
                units += [(min(job, o), max(job, o)) for o in self.here]
            self.here.append(job)
            self.rounds.come(job, units)
            self.came += 1

    def name(self, unit: Unit) -> str:
        return "+".join(map(str, unit))


@pytest.mark.parametrize(("body", "trace", "run"), RUNS, ids=[f"{t['id']}-{r['policy']}" for _, t, r in RUNS])
def test_public_rounds(body: dict[str, Any], trace: dict[str, Any], run: dict[str, Any]) -> None:
    replay = Replay(body, trace, run)
    rounds = replay.rounds
    for number, recorded in enumerate(run["rounds"]):
        now = float(recorded["t"])
        replay.arrive(now)
        shares = {
            tuple(map(int, name.split("+"))): np.array([cells.get(t, 0.0) for t in TYPES])
            for name, cells in recorded["allocation"].items()
        }
        before = run["rounds"][number - 1]["allocation"] if number else None
        # If nothing runs, upstream skips to the next arrival; if there is none, it solves the program.
        idle = number > 0 and not run["rounds"][number - 1]["running"] and replay.came == len(replay.jobs)
        assert rounds.due(now, idle) or recorded["allocation"] == before, f"the program was solved at {now}"
        if rounds.due(now, idle) and replay.here:
            rounds.solved(shares, now)
        for kind, t in enumerate(TYPES):
            told = recorded["priority"].get(t, {})
            ours = {replay.name(u): rounds.priority(u, kind) for u in rounds.received_s}
            for name, value in ours.items():
                assert value == pytest.approx(told.get(name, 0.0), rel=2e-3, abs=2e-4), (now, t, name)
        gpus = {u: replay.jobs[u[0]]["scale"] for u in rounds.received_s}
        speed = {u: [min(v) for v in zip(*replay.speed(u).values(), strict=True)] for u in rounds.received_s}
        chosen = rounds.choose([trace["worker_counts"].get(t, 0) for t in TYPES], gpus, speed)
        told_running = {
            tuple(map(int, n.split("+"))): TYPES.index(where[0]) for n, where in recorded["running"].items()
        }
        if dict(chosen) != told_running:
            assert tied(rounds, dict(chosen), told_running), (now, chosen, told_running)
        advance(replay, told_running, now)
    assert {j: replay.ended[j] - trace["jobs"][j]["arrival_s"] for j in replay.ended} == pytest.approx(
        {int(j): s for j, s in run["completion_s"].items()}, abs=0.01
    )


def tied(rounds: Rounds, ours: dict[Unit, int], told: dict[Unit, int]) -> bool:
    """Whether the first difference in the greedy pass is between units of equal rank (to four digits)."""

    def rank(choice: tuple[Unit, int]) -> tuple[float, float, float, float]:
        unit, kind = choice
        share = rounds.shares.get(unit)
        deficit = rounds.deficits[unit][kind]
        return kind, -rounds.priority(unit, kind), -deficit, -float(share[kind]) if share is not None else 0.0

    first = min(map(rank, ours.items() - told.items()))
    other = min(map(rank, told.items() - ours.items()))
    # The solver's noise parts equal priorities before the deficit is looked at; only at 0 there is none.
    fields = 2 if first[1] < 0 else 4
    return first[:fields] == pytest.approx(other[:fields], rel=2e-4, abs=2e-4)


def advance(replay: Replay, running: dict[Unit, int], now: float) -> None:
    """Run the round until its longest job ends (or until the next arrival if nothing runs)."""
    round_s = float(replay.trace["round_s"])
    seconds: dict[int, float] = {}
    for unit, kind in running.items():
        for job, speeds in replay.speed(unit).items():
            steps = min(replay.left[job], float(int(speeds[kind] * round_s)))
            replay.left[job] -= steps
            seconds[job] = steps / speeds[kind]
        seconds_of_unit = max(seconds[j] for j in unit)
        for job in unit:  # a pair reports when both are through
            if replay.left[job] <= 0:
                replay.ended[job] = now + seconds_of_unit
        idle = now - replay.last_end_s if replay.last_end_s < now else 0.0
        replay.rounds.ran(unit, kind, seconds_of_unit + idle)
    if running:
        longest = max(seconds.values())
        replay.last_end_s = now + (
            round_s if any(replay.left[j] > 0 for u in running for j in u) else longest
        )
    for job in [j for j in replay.here if replay.left[j] <= 0]:
        replay.here.remove(job)
        replay.rounds.go(job)


def test_units_without_received_time_go_first_and_zero_shares_last() -> None:
    rounds = Rounds(1, RoundConfig(360.0))
    for job in range(3):
        rounds.come(job, [(job,)])
    rounds.solved({(0,): np.array([0.5]), (1,): np.array([0.5]), (2,): np.array([0.0])}, 10.0)
    rounds.ran((0,), 0, 360.0)
    assert rounds.choose([1], {(j,): 1 for j in range(3)}, {(j,): [1.0] for j in range(3)}) == [((1,), 0)]
    assert rounds.choose([3], {(j,): 1 for j in range(3)}, {(j,): [1.0] for j in range(3)})[-1] == ((2,), 0)
    strict = Rounds(1, RoundConfig(360.0, leftovers=False))
    strict.come(0, [(0,)])
    strict.solved({(0,): np.array([0.0])}, 10.0)
    assert strict.choose([1], {(0,): 1}, {(0,): [1.0]}) == []


def test_new_arrivals_run_except_with_upstream_rounds() -> None:
    for upstream, expected in ((False, [((0,), 0)]), (True, [])):
        rounds = Rounds(1, RoundConfig(upstream=upstream))
        rounds.come(0, [(0,)])
        assert rounds.choose([1], {(0,): 1}, {(0,): [1.0]}) == expected


def test_the_program_is_solved_after_changes_and_an_interval() -> None:
    rounds = Rounds(1)
    rounds.come(0, [(0,)])
    rounds.solved({(0,): np.array([1.0])}, 100.0)
    assert not rounds.due(5000.0, idle=False)
    rounds.come(1, [(1,)])
    assert not rounds.due(100.0 + 1900.0, idle=False)
    assert rounds.due(1000.0, idle=True)
    assert rounds.due(100.0 + 1920.0, idle=False)


def two_jobs(config: RoundConfig, first: float = 0.5, second: float = 0.5) -> Rounds:
    """Two jobs on one type with these shares, from time 0 on."""
    rounds = Rounds(1, config)
    for job in range(2):
        rounds.come(job, [(job,)])
    rounds.solved({(0,): np.array([first]), (1,): np.array([second])}, 0.0)
    return rounds


def chosen(rounds: Rounds) -> list[tuple[Unit, int]]:
    """The units of one GPU."""
    return rounds.choose([1], {(j,): 1 for j in range(2)}, {(j,): [1.0] for j in range(2)})


def test_after_a_reset_units_are_owed_what_they_did_not_receive() -> None:
    rounds = two_jobs(RoundConfig(360.0))
    rounds.ran((0,), 0, 1000.0)
    rounds.solved(rounds.shares, 2000.0)
    assert rounds.deficits == {(0,): [0.0], (1,): [1000.0]}
    assert rounds.priority((0,), 0) == rounds.priority((1,), 0)
    assert chosen(rounds) == [((1,), 0)]


def test_of_equal_priorities_the_larger_share_goes_first() -> None:
    rounds = two_jobs(RoundConfig(360.0), 0.25, 0.5)
    rounds.ran((1,), 0, 180.0)
    assert rounds.priority((0,), 0) == rounds.priority((1,), 0)
    assert chosen(rounds) == [((1,), 0)]


def test_without_resets_the_time_of_new_units_is_added_once() -> None:
    rounds = two_jobs(RoundConfig(360.0, reset_s=0.0))
    rounds.ran((0,), 0, 140.0)
    rounds.come(2, [(2,)])
    rounds.solved({**rounds.shares, (2,): np.array([0.5])}, 360.0)
    assert rounds.total_s == [3 * 180.0 + 140.0]
    assert rounds.priority((0,), 0) == pytest.approx(0.5 / (320.0 / 680.0))
