"""Place jobs beyond one per slice: each joins a card on which the single-card planner finds room for all.

Packing is hard when memory is tight, so the search is greedy: jobs with a small memory footprint come first,
because more of them fit, and each goes to the card where the objective gains most. Of few jobs, those that wait
then take the place of others that count less for the objective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import nsmallest

from predictor.types import Floats, SetPredictor
from profiling.devices import get_device
from scheduling.slices.card_plan import SlicePlan
from scheduling.slices.exact import MAX_JOBS
from scheduling.slices.options import SliceConfig, SliceJob, devices_of
from scheduling.slices.plan import plan_slices
from scheduling.slices.remembered import Remembered

# Above this number of jobs, several join a card at once, and the first card with room is taken.
MANY = 64
# Up to this number of jobs, other orders are tried too.
FEW = 40
# Most cards planned to see whether a waiting job should take the place of another.
EXCHANGES = 200
# Number of distinct cards on which a job is tried, the emptiest first.
TRIED = 8
# Kinds of the jobs on a card, in ascending order.
State = tuple[int, ...]


class CardPlanner:
    """Plans for cards, cached by the kinds of their jobs.

    Args:
        kinds: the distinct jobs.
        memory_bytes: [K] upper bound of the memory of each kind, alone on the whole card.
        length_s: [K] seconds that each kind needs alone on the whole card.
    """

    def __init__(
        self,
        kinds: Sequence[SliceJob],
        memory_bytes: Floats,
        length_s: Floats,
        card: str,
        predictor: SetPredictor,
        config: SliceConfig,
    ) -> None:
        self.kinds, self.memory_bytes, self.length_s, self.card = kinds, memory_bytes, length_s, card
        self.predictor, self.config = Remembered(predictor), config
        self.uncut = len(devices_of(card, config.mig)) == 1
        self.most = min(MAX_JOBS, config.max_on_card) if self.uncut else MAX_JOBS
        self._room_bytes = get_device(card).memory_bytes
        self._workload = [str(kind.workload) for kind in kinds]
        self._known: dict[State, SlicePlan] = {}
        self._too_full: set[tuple[str, ...]] = set()

    def planned(self, state: State) -> SlicePlan | None:
        """Return the plan of a card with exactly these jobs, or None if they do not all fit."""
        # Whether jobs fit does not depend on their lengths.
        together = tuple(sorted(self._workload[k] for k in state))
        if len(state) > self.most or together in self._too_full:
            return None
        plan = self._known.get(state)
        if plan is None:
            # SM shares do not affect what fits, so they are chosen once the sets are known.
            plan = self._plan(state, replace(self.config, shares=(1.0,)), self.config.objective == "jct")
            if plan.chosen.placed < len(state):
                self._too_full.add(together)
                return None
            self._known[state] = plan
        return plan

    def final(self, state: State) -> SlicePlan:
        """Return the plan with SM shares."""
        return self._plan(state, self.config)

    def worth(self, state: State) -> tuple[float, float]:
        """Least speed (for the fairness objective, else 0) and value of a card; higher is better."""
        plan = self.planned(state) if state else None
        fair = self.config.objective == "fairness"
        if plan is None:
            return (float("inf") if fair else 0.0), 0.0
        least = min(s.option.least_speed for s in plan.chosen.slices if s.option) if fair else 0.0
        return least, plan.chosen.value

    def load(self, state: State, more: State) -> tuple[bool, int, float]:
        """Sort key of the cards to try: memory seems to suffice for `more` jobs, then fewest jobs, then least
        memory."""
        used = float(self.memory_bytes[[*state, *more]].sum())
        return used > self._room_bytes, len(state), used

    def _plan(self, state: State, config: SliceConfig, times: bool = True) -> SlicePlan:
        if len(state) > config.max_on_card:
            config = replace(config, max_on_card=1)  # they do not all fit on the unpartitioned card
        return plan_slices([self.kinds[k] for k in state], self.card, self.predictor, config, False, times)


class Cards:
    """The cards of a fleet as they fill up; cards with equal jobs share one state.

    Args:
        groups: numbers of the jobs on each card, possibly none.
        kind_of: kind of each job.
    """

    def __init__(self, planner: CardPlanner, groups: Iterable[Sequence[int]], kind_of: Sequence[int]) -> None:
        self.planner, self.kind_of = planner, kind_of
        self._of: dict[State, list[list[int]]] = {}
        for group in groups:
            self._of.setdefault(self._state(group), []).append(list(group))

    @property
    def groups(self) -> list[list[int]]:
        """The jobs of each card that has any."""
        return [group for groups in self._of.values() for group in groups if group]

    def worth(self) -> tuple[int, float, float]:
        """Jobs placed, least speed (for the fairness objective, else 0), sum of the values; higher is
        better."""
        placed, least, value = 0, float("inf"), 0.0
        for state, groups in self._of.items():
            own_least, own_value = self.planner.worth(state)
            placed += len(state) * len(groups)
            least, value = min(least, own_least), value + own_value * len(groups)
        return placed, least, value

    def join(self, left: Sequence[int]) -> list[int]:
        """Let jobs join cards in the given order, and return those without room."""
        many = len(left) > MANY
        count = -(-len(left) // sum(map(len, self._of.values()))) if many else 1
        queue, waiting, given_up = deque(left), list[int](), set[str]()
        while queue:
            together = [queue.popleft() for _ in range(min(count, len(queue)))]
            if len(together) > 1 and self._insert(together, 1, True):
                continue
            for job in together:
                workload = str(self.planner.kinds[self.kind_of[job]].workload)
                # Cards only fill up, so a job without room will not find any later.
                if workload in given_up or not self._insert([job], TRIED, many):
                    given_up.add(workload)
                    waiting.append(job)
        return waiting

    def exchange(self, waiting: Sequence[int]) -> None:
        """Let waiting jobs take the place of others, one for one, while a card gains."""
        waits, tried = list(waiting), set[State]()
        while any(self._exchanged(waits, place, tried) for place in range(len(waits))):
            pass

    def _exchanged(self, waits: list[int], place: int, tried: set[State]) -> bool:
        """Whether the job in this place of `waits` took the place of another, which waits instead."""
        job, planner = waits[place], self.planner
        for state in list(self._of):
            least, value = planner.worth(state)
            for position, leaves in enumerate(state):
                if leaves in state[:position]:
                    continue
                after = tuple(sorted((*state[:position], *state[position + 1 :], self.kind_of[job])))
                if after not in tried and len(tried) == EXCHANGES:
                    continue
                tried.add(after)
                if planner.planned(after) is None:
                    continue
                new_least, new_value = planner.worth(after)
                if new_least < least or new_value <= value + 1e-6 * abs(value):
                    continue
                group = self._of[state].pop()
                if not self._of[state]:
                    del self._of[state]
                other = next(member for member in group if self.kind_of[member] == leaves)
                self._of.setdefault(after, []).append([*(m for m in group if m != other), job])
                waits[place] = other
                return True
        return False

    def _insert(self, jobs: list[int], tried: int, first: bool) -> bool:
        """Put jobs on one card: the best of those tried, or the first with room."""
        best: tuple[tuple[float, float], State, State] | None = None
        more = tuple(self.kind_of[job] for job in jobs)
        for state in nsmallest(tried, self._of, key=lambda state: self.planner.load(state, more)):
            joined = tuple(sorted(state + more))
            if self.planner.planned(joined) is None:
                continue
            least, value = self.planner.worth(joined)
            gain = 0.0 if first else value - self.planner.worth(state)[1]
            if best is None or (least, gain) > best[0]:
                best = (least, gain), state, joined
            if first:
                break
        if best is None:
            return False
        _, state, joined = best
        group = self._of[state].pop()
        if not self._of[state]:
            del self._of[state]
        self._of.setdefault(joined, []).append([*group, *jobs])
        return True

    def _state(self, group: Iterable[int]) -> State:
        return tuple(sorted(self.kind_of[job] for job in group))


def filled(
    planner: CardPlanner,
    seeds: Sequence[Sequence[int]],
    left: Sequence[int],
    gpus: int,
    kind_of: Sequence[int],
) -> list[list[int]]:
    """Let the jobs of `left` join the cards of `seeds`; return the jobs of each card that has any.

    Args:
        seeds: for each card, numbers of the jobs that have a slice of their own.
        left: numbers of the other jobs that fit on the card at all.
        kind_of: kind of each job.
    """

    def small_first(job: int) -> tuple[float, ...]:
        """Sort key: least memory first, then the job that counts most for the objective."""
        kind = kind_of[job]
        length = float(planner.length_s[kind]) if planner.config.objective == "jct" else 1.0
        return float(planner.memory_bytes[kind]), length, kind

    everyone = sorted([*left, *(job for group in seeds for job in group)], key=small_first)
    if planner.uncut:
        seeds, left = [], everyone  # a job alone on an unpartitioned card takes the room of many
    empty: list[list[int]] = [[] for _ in range(gpus - len(seeds))]
    best = Cards(planner, [*seeds, *empty], kind_of)
    waiting = best.join(sorted(left, key=small_first))
    if len(everyone) > FEW or not (waiting or planner.uncut):
        return best.groups
    # If memory is short, large jobs must go first to find room; those that fit nowhere go last.
    low, high = len(everyone) - len(waiting), min(len(everyone), gpus * planner.most)
    first = high
    while True:
        again = Cards(planner, [[] for _ in range(gpus)], kind_of)
        refused = again.join([*everyone[:first][::-1], *everyone[first:]])
        if again.worth() > best.worth():
            best, waiting = again, refused
        if set(refused) & set(everyone[:first]):
            high = first - 1
        else:
            low = first
        low = max(low, len(everyone) - len(waiting))
        if low >= high:
            break
        first = (low + high + 1) // 2
    # The jobs that find room are those with little or much memory; the objective may count others for more.
    best.exchange(waiting)
    return best.groups
