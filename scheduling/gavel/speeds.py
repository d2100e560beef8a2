"""Speeds of jobs: alone on each type, and beside another job."""

from __future__ import annotations

import numpy as np

from predictor.types import Floats
from scheduling.core.job import JobState
from scheduling.core.set_cache import SetCache
from scheduling.core.state import SchedulingSnapshot
from scheduling.placement.gangs import solo_step_s
from scheduling.sia.agent import Agent
from scheduling.sia.application import CALIBRATION


def solo_speeds(
    snapshot: SchedulingSnapshot, belief: SetCache, job: JobState, kinds: list[int], too_small: float = 0.0
) -> Floats:
    """[W] steps per second of the whole job on each of the types `kinds`.

    A job with an agent is assumed to use its submitted batch size and number of GPUs.

    Args:
        snapshot: the cluster.
        belief: predictions.
        job: the job.
        kinds: type numbers.
        too_small: speed on a type with fewer GPUs than the job takes.
    """
    if isinstance(job.agent, Agent):
        speeds = [_measured(snapshot, job, job.agent, kind) for kind in kinds]
    else:
        steps = solo_step_s(snapshot, belief, job.job.workload)
        speeds = [1.0 / steps[kind] for kind in kinds]
    enough = snapshot.type_size[kinds] >= job.job.gpus
    return np.where(enough, speeds, too_small)


def _measured(snapshot: SchedulingSnapshot, job: JobState, agent: Agent, kind: int) -> float:
    size = int(snapshot.node_size[snapshot.nodes_of_type[kind]].max())
    if job.job.gpus > snapshot.type_size[kind]:
        return 0.0
    speed = agent.submitted_steps_per_s(snapshot.types[kind], size)
    # As in Sia's artifact, at the speed of its physical cluster; only the sum of steps per second depends on
    # this.
    return speed / CALIBRATION.get(agent.application.name, 1.0)


def pair_speeds(
    snapshot: SchedulingSnapshot,
    belief: SetCache,
    jobs: list[JobState],
    alone: Floats,
    pairs: list[tuple[int, int]],
    kinds: list[int],
) -> dict[tuple[int, int], Floats]:
    """[W, 2] joint steps per second of those `pairs` that somewhere do more than taking turns.

    Where the two do less together than in turn, or do not fit, the speeds are 0, because no optimum needs
    such a row.

    Args:
        snapshot: the cluster.
        belief: predictions.
        jobs: the jobs.
        alone: [J, W] solo steps per second of each job.
        pairs: indices of `jobs`.
        kinds: type numbers.
    """
    if not pairs:
        return {}
    numbers = np.array([belief.workload_id(j.job.workload) for j in jobs], np.int64)
    members = numbers[np.array(pairs)]
    speed = np.zeros((len(pairs), len(kinds), 2))
    solo = alone[np.array(pairs)]  # [P, 2, W]
    for column, kind in enumerate(kinds):
        device = belief.device_id(snapshot.types[kind], snapshot.type_sharing[kind])
        rows, columns = belief.pairs(device, members)
        together = 1.0 / np.take_along_axis(belief.step_time_s[rows], columns, axis=1)
        fits = belief.fits[rows]
        own = solo[:, :, column]
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.where(own > 0, together / own, 0.0).sum(axis=1)
        worth = fits & (own > 0).all(axis=1) & (gain > 1.0)
        speed[:, column] = np.where(worth[:, None], together, 0.0)
    return {pair: speed[k] for k, pair in enumerate(pairs) if speed[k].any()}
