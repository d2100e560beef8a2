"""One job on several GPUs with DistributedDataParallel: step time, and how much of it is exposed communication."""

from __future__ import annotations

import math
import socket
import time
from statistics import median
from typing import Any

from profiling.devices.visible import visible_entry
from profiling.measure.record import member_entry, new_record, solo_figures
from profiling.measure.request import RunRequest
from profiling.measure.session import Session
from profiling.measure.settings import MeasureSettings
from profiling.measure.statistics import common_window, within


def measure_ddp(request: RunRequest, settings: MeasureSettings, device_name: str) -> dict[str, Any]:
    """Measure `request.processes` ranks that train together, with and without gradient all-reduce.

    All ranks take the same number of steps, because a rank that stopped earlier would leave the others waiting in a
    collective. On CUDA each rank has its own GPU (NCCL); on the CPU all ranks share the machine (Gloo), for tests.

    Returns:
        A record as from `measure`, whose only member also has `sync_time_s`: the step time minus that without
        all-reduce, in seconds, at least 0.

    Raises:
        NotMeasurableError: a factory is missing or fails, or its job trains nothing.
        UnavailableError: CUDA sees fewer GPUs than `request.processes`, or torch cannot use them.
    """
    began, count = time.monotonic(), request.processes
    record = new_record(request, settings, device_name)
    common = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(count),
    }
    environments = [
        {
            **common,
            "RANK": str(i),
            **({"CUDA_VISIBLE_DEVICES": visible_entry(i)} if request.device == "cuda" else {}),
        }
        for i in range(count)
    ]
    synced: list[float] = []
    unsynced: list[float] = []
    with Session(
        request.workloads * count,
        request.device,
        settings,
        environments=environments,
        distributed="rewrapped" if request.rewrapped else "wrapped-before",
    ) as session:
        session.require_sound()
        block = settings.warmup_block_steps
        # The first steps connect the ranks and allocate; their pace would make the windows too short.
        for without in (False, True):
            _window(session, block, without)
            session.require_sound()
        pace_s = _window(session, block, False)
        if pace_s is not None:
            steps = max(settings.min_steps, math.ceil(settings.window_s / pace_s))
            for _ in range(settings.repeats):
                for without, times in ((False, synced), (True, unsynced)):
                    step_time_s = _window(session, steps, without)
                    if step_time_s is not None:
                        times.append(step_time_s)
        member = member_entry(next((m for m in session.members if not m.alive), session.members[0]))
    if synced and unsynced:
        member |= solo_figures(synced, settings.stable_ratio)
        member["sync_time_s"] = max(0.0, median(synced) - median(unsynced))
    return record | {
        "members": [member],
        "repeats": [{"synchronised_s": a, "local_s": b} for a, b in zip(synced, unsynced, strict=False)],
        "set": {},
        "sharing": "time-slice",
        "wall_s": round(time.monotonic() - began, 3),
    }


def _window(session: Session, steps: int, without_sync: bool) -> float | None:
    """Step time in seconds over `steps` steps of all ranks; None if one of them died."""
    command = {"do": "steps", "count": steps, "without_sync": without_sync}
    answers = session.ask_all(lasting_s=session.settings.window_s, **command)
    if len(answers) < len(session.members):
        return None
    boundaries = [a["boundaries"] for a in answers.values()]
    window = within(boundaries[0], *common_window(boundaries))
    if window is not None:
        return window.step_time_s
    # Ranks that started far apart have no whole step in common; the slowest rank sets the pace of the job.
    paces = [(times[-1] - times[0]) / (len(times) - 1) for times in boundaries if len(times) > 1]
    return max(paces) if len(paces) == len(boundaries) else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
