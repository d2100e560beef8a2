"""Gavel: max-min fair shares of every GPU type by a linear programme, realised round by round; packed: pairs too.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads", OSDI 2020, sections
4.1 (max-min), 3.1 (space sharing) and 5 (rounds: jobs run by share wanted over share received).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from profiling.workload import ColocationSet, Workload
from scheduling.core.job import Allocation, JobState
from scheduling.core.policy import Policy
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import Pool, solo_step_s

ROUND_S = 360.0
Class = tuple[Workload, int]


def decide(snapshot: SchedulingSnapshot, belief: SetCache, packed: bool = False) -> list[Allocation]:
    """Jobs (or pairs) by share wanted over share received, on the type that the share is of."""
    jobs = sorted(snapshot.active(), key=lambda j: j.number)
    if not jobs:
        return []
    members: dict[Class, list[JobState]] = {}
    for job in jobs:
        members.setdefault((job.job.workload, job.job.gpus), []).append(job)
    classes = list(members)
    units, share = _shares(snapshot, belief, classes, [len(members[c]) for c in classes], packed)
    wanted = []
    for (combo, kind), x in zip(units, share, strict=True):
        if x > 1e-6:
            for rank, group in enumerate(_groups(members, [classes[c] for c in combo])):
                age = max(snapshot.now_s - min(j.job.submit_s for j in group), ROUND_S)
                got = np.mean([j.served_s.get(snapshot.types[kind], 0.0) for j in group]) / age
                wanted.append((x / (got + 1e-3), -rank, kind, group))
    wanted.sort(key=lambda w: (-w[0], -w[1], w[2]))
    room = snapshot.type_size.copy()
    chosen: list[tuple[int, list[JobState]]] = []
    busy: set[int] = set()
    for _, _, kind, group in wanted:
        need = group[0].job.gpus
        if room[kind] >= need and not any(j.number in busy for j in group):
            room[kind] -= need
            busy.update(j.number for j in group)
            chosen.append((kind, group))
    return _place(snapshot, chosen)


def _shares(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    classes: list[Class],
    counts: list[int],
    packed: bool,
) -> tuple[list[tuple[tuple[int, ...], int]], list[float]]:
    """Time share of each (classes together, type), per job of the first class."""
    speed = np.array([[1.0 / s for s in solo_step_s(snapshot, belief, w)] for w, _ in classes])
    fair = (speed * snapshot.type_size / len(snapshot)).sum(axis=1)
    units: list[tuple[tuple[int, ...], int]] = []
    gains: list[dict[int, float]] = []
    for c in range(len(classes)):
        for kind in range(len(snapshot.types)):
            if speed[c, kind] > 0 and classes[c][1] <= snapshot.type_size[kind]:
                units.append(((c,), kind))
                gains.append({c: speed[c, kind] * counts[c] / (fair[c] * counts[c])})
    if packed:
        pairs = [
            (a, b, kind)
            for a in range(len(classes))
            for b in range(a, len(classes))
            if classes[a][1] == classes[b][1] == 1 and (a != b or counts[a] > 1)
            for kind in range(len(snapshot.types))
        ]
        if pairs:
            answer = belief.predictor.predict_arrays(
                [ColocationSet(snapshot.types[k], (classes[a][0], classes[b][0])) for a, b, k in pairs]
            )
            for row, (a, b, kind) in enumerate(pairs):
                ratio = 1.0 / answer.slowdown[row, :2]
                if answer.fits[row] and ratio.sum() > 1.05:  # no gain, no pair
                    gain = {a: ratio[0] * speed[a, kind] / fair[a]}
                    gain[b] = gain.get(b, 0.0) * (a == b) + ratio[1] * speed[b, kind] / fair[b]
                    units.append(((a, b), kind))
                    gains.append(gain)
    # Variables: total time of each unit (in jobs), and the floor z that everyone reaches.
    size = len(units)
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for c in range(len(classes)):  # z * count - progress <= 0, and time <= count
        for u in range(size):
            if c in units[u][0]:
                rows += [c, len(classes) + c]
                columns += [u, u]
                values += [-gains[u][c], float(units[u][0].count(c))]
        rows.append(c)
        columns.append(size)
        values.append(float(counts[c]))
    limits = [0.0] * len(classes) + [float(n) for n in counts] + snapshot.type_size.astype(float).tolist()
    for u in range(size):
        rows.append(2 * len(classes) + units[u][1])
        columns.append(u)
        values.append(float(classes[units[u][0][0]][1]))
    matrix = csr_array((values, (rows, columns)), shape=(len(limits), size + 1))
    # A little weight on everyone's progress fills what the floor leaves open.
    target = np.array([-1e-3 * sum(g.values()) for g in gains] + [-float(sum(counts))])
    found: Any = linprog(  # type: ignore[call-overload]
        target, A_ub=matrix, b_ub=np.array(limits), bounds=(0, None), method="highs"
    )  # type: ignore[call-overload]
    if found.x is None:
        return [], []
    return units, [float(found.x[u]) / counts[units[u][0][0]] for u in range(size)]


def _groups(members: dict[Class, list[JobState]], combo: list[Class]) -> list[list[JobState]]:
    if len(combo) == 1:
        return [[job] for job in members[combo[0]]]
    first, second = members[combo[0]], members[combo[1]]
    if combo[0] == combo[1]:
        return [list(pair) for pair in zip(first[::2], first[1::2], strict=False)]
    return [list(pair) for pair in zip(first, second, strict=False)]


def _place(snapshot: SchedulingSnapshot, chosen: list[tuple[int, list[JobState]]]) -> list[Allocation]:
    """Groups stay where they are together already; the others get whole GPUs of their type."""
    stay = [
        group
        for kind, group in chosen
        if group[0].gpus
        and snapshot.type_of[group[0].gpus[0]] == kind
        and {j.number for j in snapshot.tenants[group[0].gpus[0]]} == {j.number for j in group}
    ]
    kept = {j.number for group in stay for j in group}
    leaving = [j for j in snapshot.running.values() if j.number not in kept]
    pool = Pool(snapshot, {g for j in leaving for g in j.gpus})
    decisions = {j.number: Allocation(j) for j in leaving}
    for kind, group in chosen:
        if group[0].number in kept:
            continue
        gpus = pool.take(group[0].job.gpus, kind)
        if gpus:
            decisions.update({j.number: Allocation(j, gpus) for j in group})
    return list(decisions.values())


POLICY = Policy("gavel", decide, round_s=ROUND_S, preemptive=True)
PACKED = Policy("gavel-packed", partial(decide, packed=True), round_s=ROUND_S, preemptive=True)
