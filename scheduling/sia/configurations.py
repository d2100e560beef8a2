"""Configurations (nodes, GPUs, type) and their placement (Sia, section 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from scheduling.core.job import JobState
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import by_switch


class Configuration(NamedTuple):
    """`gpus` GPUs of type number `kind` on `nodes` nodes."""

    nodes: int
    gpus: int
    kind: int


def configurations(nodes: Sequence[int], per_node: Sequence[int], largest: int = 64) -> list[Configuration]:
    """Per type: 1, 2, 4, ..., R GPUs of one node, and 2 ... N whole nodes.

    Args:
        nodes: nodes of each type.
        per_node: GPUs per node.
        largest: no configuration has more GPUs than this.
    """
    table: list[Configuration] = []
    for kind, (count, size) in enumerate(zip(nodes, per_node, strict=True)):
        gpus = 1
        while gpus < size:
            table.append(Configuration(1, gpus, kind))
            gpus *= 2
        table.extend(Configuration(n, n * size, kind) for n in range(1, count + 1))
    return [c for c in table if c.gpus <= largest]


def place_configurations(
    snapshot: SchedulingSnapshot, chosen: Mapping[int, tuple[JobState, Configuration]]
) -> dict[int, tuple[int, ...]]:
    """GPUs for each chosen job, by job number.

    A job whose configuration is unchanged stays where it is. If the type's nodes are large enough, a part of
    a node is not split, and several nodes are whole ones. If the free GPUs are too scattered, the fewest jobs
    are evicted and placed again; if that is not enough, everything on the type is packed anew, largest first.
    """
    result: dict[int, tuple[int, ...]] = {}
    for kind in range(len(snapshot.types)):
        jobs = [(job, config) for job, config in chosen.values() if config.kind == kind]
        stay: dict[int, tuple[int, ...]] = {}
        claimed: set[int] = set()  # of two jobs that have shared a GPU, only one can stay alone on it
        for j, c in sorted(jobs, key=lambda pair: snapshot.movable(pair[0])):
            if _has(snapshot, j, c) and claimed.isdisjoint(j.gpus):
                stay[j.number] = j.gpus
                claimed.update(j.gpus)
        rest = [(j, c) for j, c in jobs if j.number not in stay]
        placed = _pack(snapshot, kind, rest, {g for gpus in stay.values() for g in gpus})
        placed = _make_room(snapshot, kind, chosen, stay, rest, placed)
        if len(placed) < len(rest):
            fixed = {j.number: j.gpus for j, _ in jobs if j.number in stay and not snapshot.movable(j)}
            again = [(j, c) for j, c in jobs if j.number not in fixed]
            anew = _pack(snapshot, kind, again, {g for gpus in fixed.values() for g in gpus})
            if len(anew) + len(fixed) > len(placed) + len(stay):
                stay, placed = fixed, anew
        result.update(stay)
        result.update(placed)
    return result


def place_meanwhile(
    snapshot: SchedulingSnapshot,
    jobs: Sequence[tuple[JobState, Sequence[Configuration]]],
    taken: Collection[int],
) -> dict[int, tuple[int, ...]]:
    """GPUs for jobs with the configurations that each may have, in order of preference, by job number.

    Running jobs come first and keep their GPUs; there may be none for others.

    Args:
        snapshot: the cluster.
        jobs: the jobs.
        taken: GPUs that they cannot have.
    """
    used, given = set(taken), dict[int, tuple[int, ...]]()
    for job, possible in sorted(jobs, key=lambda pair: not pair[0].gpus):
        gpus = job.gpus if used.isdisjoint(job.gpus) else ()
        for config in () if gpus else possible:
            gpus = _pack(snapshot, config.kind, [(job, config)], used).get(job.number, ())
            if gpus:
                break
        given[job.number] = gpus
        used.update(gpus)
    return given


def _make_room(
    snapshot: SchedulingSnapshot,
    kind: int,
    chosen: Mapping[int, tuple[JobState, Configuration]],
    stay: dict[int, tuple[int, ...]],
    rest: list[tuple[JobState, Configuration]],
    placed: dict[int, tuple[int, ...]],
) -> dict[int, tuple[int, ...]]:
    """Evict smaller jobs from the node with the most free GPUs until `rest` is placed.

    Modifies `stay` and `rest`.
    """
    for _ in range(len(rest) + len(stay)):
        missing = [c for j, c in rest if j.number not in placed]
        if not missing:
            break
        need = max(missing, key=lambda c: c.gpus)
        taken = {g for gpus in stay.values() for g in gpus} | snapshot.down
        leaving: dict[int, list[int]] = {}
        for number, gpus in stay.items():
            job = chosen[number][0]
            if len(gpus) < need.gpus and snapshot.movable(job):
                leaving.setdefault(int(snapshot.node_of[gpus[0]]), []).append(number)
        if not leaving:
            break
        free = {n: sum(g not in taken for g in snapshot.node_gpus[n]) for n in leaving}
        node = max(leaving, key=lambda n: (free[n], -n))
        evicted = min(leaving[node], key=lambda number: (len(stay[number]), number))
        rest.append(chosen[evicted])
        del stay[evicted]
        placed = _pack(snapshot, kind, rest, {g for gpus in stay.values() for g in gpus})
    return placed


def _has(snapshot: SchedulingSnapshot, job: JobState, config: Configuration) -> bool:
    if len(job.gpus) != config.gpus or not job.gpus or snapshot.type_of[job.gpus[0]] != config.kind:
        return False
    return len({int(snapshot.node_of[g]) for g in job.gpus}) == config.nodes


def _pack(
    snapshot: SchedulingSnapshot,
    kind: int,
    jobs: Sequence[tuple[JobState, Configuration]],
    taken: Collection[int],
) -> dict[int, tuple[int, ...]]:
    room = {
        int(n): [g for g in snapshot.node_gpus[n] if g not in taken and g not in snapshot.down]
        for n in snapshot.nodes_of_type[kind].tolist()
    }
    sizes = {n: len(snapshot.node_gpus[n]) for n in room}
    placed: dict[int, tuple[int, ...]] = {}
    for job, config in sorted(jobs, key=lambda p: (-p[1].gpus, p[0].number)):
        free = {n: len(gpus) for n, gpus in room.items()}
        plan = _whole_nodes(snapshot, config.gpus, free, sizes)
        if plan is None and _whole_nodes(snapshot, config.gpus, sizes, sizes) is None:
            plan = _emptiest(snapshot, config, free)
        if plan is None:
            continue
        placed[job.number] = tuple(g for node, count in plan for g in room[node][:count])
        for node, count in plan:
            del room[node][:count]
    return placed


def _whole_nodes(
    snapshot: SchedulingSnapshot, gpus: int, free: Mapping[int, int], sizes: Mapping[int, int]
) -> list[tuple[int, int]] | None:
    """(node, GPUs): whole nodes of the largest size, and the rest on the one node that it fills best.

    Under one switch if possible.
    """
    size = max(sizes.values())
    count, rest = divmod(gpus, size)
    empty = [n for n, room in free.items() if room == sizes[n] == size]
    empty = by_switch(snapshot, empty, [size] * len(empty), count * size)
    switch = {n: int(snapshot.switch_of[n]) for n in free}

    def under(switches: set[int]) -> list[tuple[int, int]] | None:
        whole = [n for n in empty if switch[n] in switches][:count]
        used = {switch[n] for n in whole}
        others = [n for n, room in free.items() if room >= rest and switch[n] in switches and n not in whole]
        if len(whole) < count or (rest and not others):
            return None
        plan = [(n, size) for n in whole]
        if rest:
            plan.append((min(others, key=lambda n: (bool(used) and switch[n] not in used, free[n], n)), rest))
        return plan

    one_by_one = dict.fromkeys(switch[n] for n in empty) if count else ()
    return next(filter(None, (under({one}) for one in one_by_one)), None) or under(set(switch.values()))


def _emptiest(
    snapshot: SchedulingSnapshot, config: Configuration, free: Mapping[int, int]
) -> list[tuple[int, int]] | None:
    """(node, GPUs) if nodes are too small or too few for `_whole_nodes`: as many nodes as the configuration
    has, under one switch if possible."""
    together = by_switch(snapshot, list(free), list(free.values()), config.gpus)
    return _on(config, free, together) or _on(config, free, sorted(free, key=lambda n: (-free[n], n)))


def _on(config: Configuration, free: Mapping[int, int], nodes: Sequence[int]) -> list[tuple[int, int]] | None:
    """(node, GPUs) of the configuration on the first of `nodes`; None if they have too little room."""
    need, plan = config.gpus, []
    for node in nodes[: config.nodes]:
        plan.append((node, min(need, free[node])))
        need -= plan[-1][1]
    return None if need else plan
