"""Whose turn it is in IceFrog's rounds: jobs that have waited too long go first for a while, so that none starves."""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.job import JobState
from scheduling.core.state import SchedulingSnapshot


class Turns:
    """A job's turn begins once it has waited for `starvation_s` in all since its last one.

    It goes on until the job has held GPUs for as long. Waiting adds up, because a job that gets a round now and then
    spends it on the restart. One object per simulation.
    """

    def __init__(self) -> None:
        self._waited_before_s: dict[int, float] = {}  # up to the end of its last turn
        self._began: dict[int, tuple[float, float]] = {}  # when its turn began, and how long it had waited

    def first(
        self, states: Iterable[JobState], snapshot: SchedulingSnapshot, starvation_s: float
    ) -> set[int]:
        """Numbers of the jobs whose turn it is now."""
        now_s = snapshot.now_s
        chosen = set()
        for state in states:
            number = state.number
            waited_s = state.waited_s + (0.0 if state.gpus else now_s - state.waiting_since_s)
            if number not in self._began and waited_s - self._waited_before_s.get(number, 0.0) > starvation_s:
                self._began[number] = now_s, waited_s
            if number not in self._began:
                continue
            began_s, waited_then_s = self._began[number]
            held_s = now_s - began_s - (waited_s - waited_then_s)
            if held_s < starvation_s:
                chosen.add(number)
            else:
                del self._began[number]
                self._waited_before_s[number] = waited_s
        return chosen
