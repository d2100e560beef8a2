"""Executes one `RunRequest` and returns its record."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from profiling.devices import has_mig, mig_layout
from profiling.errors import InputError
from profiling.measure.device_usage import UsageMeter
from profiling.measure.environment import device_name
from profiling.measure.operators import own_graph
from profiling.measure.request import RunRequest
from profiling.measure.session import Session
from profiling.measure.settings import MeasureSettings
from profiling.measure.sharing import sharing_in_force
from profiling.measure.statistics import Window, common_window, summarize, within

Progress = Callable[[str], None]


def measure(
    request: RunRequest, settings: MeasureSettings | None = None, progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Measure the jobs of `request`.

    Alone and together are windows of the same processes, in turn: in every repeat each member of a set first runs
    alone with the others paused, then all run. A ratio is taken within its repeat, so that what drifts between
    repeats (clocks, neighbours on the machine) cancels.

    Returns:
        The record (see docs/measuring.md): JSON-able, one entry per member; under MIG an entry's `device` is its slice. A member that ran out of memory or died
        has that as its `outcome`; the others keep what was measured while all lived.

    Raises:
        UnavailableError: no such device, or MPS cannot enforce the requested SM shares.
    """
    settings = settings or MeasureSettings()
    catalogue_name = device_name(request.device)
    if request.kind == "ddp":
        from profiling.measure.ddp import measure_ddp

        return measure_ddp(request, settings, catalogue_name)
    began = time.monotonic()
    record: dict[str, Any] = {
        "version": 1,
        "id": request.run_id(settings),
        "request": request.to_mapping(),
        "device": catalogue_name,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "host_input": settings.host_input,
        "notes": [],
    }
    core = pinned_core(settings) if request.device == "cpu" else None
    meter = UsageMeter(request.device, settings)
    shares = [w.sm_share_ratio for w in request.workloads]
    with (
        meter,
        sharing_in_force(request.sharing, request.device, len(request.workloads), shares) as sharing,
    ):
        progress("building")
        with Session(
            request.workloads,
            request.device,
            settings,
            core=core,
            environments=sharing.environments,
            cached_activations=request.cached_activations,
        ) as session:
            _warm_all(session, record, progress)
            for member, profile in zip(record["members"], sharing.slices, strict=False):
                if profile and has_mig(catalogue_name):
                    layout = mig_layout(catalogue_name)
                    member["device"] = layout.device(layout.profile(profile))
            sharing.confirm()
            if request.kind == "operators":
                _operators(session, record)
            else:
                _windows(session, settings, meter, record, progress)
        record |= {
            "sharing": sharing.mode,
            "core": core,
            "notes": [*record["notes"], *sharing.notes, *meter.notes],
            "wall_s": round(time.monotonic() - began, 3),
        }
    return record


def pinned_core(settings: MeasureSettings) -> int | None:
    """The core that members share: the last one allowed, which the system itself uses least.

    Raises:
        InputError: this process may not use the configured core.
    """
    if not hasattr(os, "sched_getaffinity"):
        return settings.core
    allowed = os.sched_getaffinity(0)
    if settings.core is None:
        return max(allowed)
    if settings.core not in allowed:
        raise InputError(
            "setting core names a core that this process may not use",
            expected="one of " + ", ".join(map(str, sorted(allowed))),
            got=settings.core,
        )
    return settings.core


def _warm_all(session: Session, record: dict[str, Any], progress: Progress) -> None:
    for i in session.alive:
        progress(f"warming up {session.members[i].workload}")
        warm = session.warm(i)
        if warm is not None:
            session.members[i].facts |= {"settled": warm["settled"], "warmup_steps": warm["steps"]}
    record["members"] = [
        {
            "workload": str(m.workload.without_solo()),
            "architecture": m.workload.model,
            "batch_size": m.workload.batch_size or m.facts.get("samples_per_step"),
            "precision": m.workload.precision,
            "frozen_prefix": m.workload.frozen_prefix,
            "outcome": m.outcome,
            "message": m.message,
            **m.facts,
        }
        for m in session.members
    ]


def _windows(
    session: Session, settings: MeasureSettings, meter: UsageMeter, record: dict[str, Any], progress: Progress
) -> None:
    """Fill in the repeats and every member's figures."""
    everyone = range(len(session.members))
    together = len(everyone) > 1
    disturbed = kept_disturbed = 0

    def window(kind: str, members: Sequence[int], length_s: float) -> list[Window] | None:
        nonlocal disturbed, kept_disturbed
        for attempt in range(settings.retries + 1):
            meter.begin()
            answers = session.phase(members, length_s)
            usage = meter.end()
            if len(answers) < len(members):
                return None
            quiet = meter.was_quiet(answers)
            disturbed += not quiet
            if quiet or attempt == settings.retries:
                kept_disturbed += not quiet
                break
        meter.keep(kind, answers, usage, [m.process.pid for m in session.members])
        boundaries = {i: answers[i]["boundaries"] for i in members}
        bounds = common_window(list(boundaries.values()))
        windows = [within(boundaries[i], *bounds) for i in members]
        return None if None in windows else [w for w in windows if w is not None]

    alone: list[list[float]] = [[] for _ in everyone]
    shared: list[list[float]] = [[] for _ in everyone]
    repeats: list[dict[str, Any]] = []
    if together and len(session.alive) == len(everyone):
        session.phase(
            everyone, settings.window_s / 2
        )  # warm up together: caches, clocks, the scheduler's shares
    for repeat in range(settings.repeats):
        if len(session.alive) < len(everyone):
            break
        progress(f"repeat {repeat + 1} of {settings.repeats}")
        entry: dict[str, Any] = {"alone": [], "together": []}
        for i in everyone:
            single = window("alone", [i], settings.alone_window_s if together else settings.window_s)
            if single is None:
                break
            entry["alone"].append(_rounded(single[0]))
        whole = (
            window("together", everyone, settings.window_s)
            if together and len(session.alive) == len(everyone)
            else []
        )
        if (
            len(entry["alone"]) < len(everyone)
            or whole is None
            or len(whole) != (len(everyone) if together else 0)
        ):
            continue  # keep only complete repeats, because ratios are taken within them
        entry["together"] = [_rounded(w) for w in whole]
        repeats.append(entry)
        for i in everyone:
            alone[i].append(entry["alone"][i][1])
            if together:
                shared[i].append(entry["together"][i][1])
    record["repeats"], record["disturbed_windows"] = repeats, disturbed
    for i, member in enumerate(session.members):
        entry = record["members"][i]
        entry |= {"outcome": member.outcome, "message": member.message}
        if member.alive and not repeats and len(session.alive) == len(everyone):
            entry |= {"outcome": "failed", "message": "no window contained a complete step of every member"}
        entry |= _figures(alone[i], shared[i], settings, entry.get("samples_per_step")) | meter.member(i)
        if 3 * kept_disturbed > len(repeats):
            entry |= {name: "disturbed" for name in ("solo_verdict", "verdict") if name in entry}
    record["set"] = meter.whole()


def _rounded(window: Window) -> list[float]:
    """steps, step_time_s, median and MAD of single steps."""
    return [
        window.steps,
        *(round(v, 9) for v in (window.step_time_s, window.step_median_s, window.step_mad_s)),
    ]


def _figures(
    alone: list[float], shared: list[float], settings: MeasureSettings, samples: int | None
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if alone:
        solo = summarize(alone, settings.stable_ratio)
        figures |= {
            "solo_step_time_s": solo.median,
            "solo_step_time_mad_s": solo.mad,
            "solo_spread_ratio": solo.spread_ratio,
            "solo_verdict": solo.verdict,
            "solo_samples_per_s": samples / solo.median if samples else None,
        }
    if shared:
        step = summarize(shared, settings.stable_ratio)
        ratios = [a / s for a, s in zip(alone, shared, strict=False)]
        ratio = summarize(ratios, settings.stable_ratio)
        figures |= {
            "step_time_s": step.median,
            "step_time_mad_s": step.mad,
            "throughput_ratio": ratio.median,
            "throughput_ratio_mad": ratio.mad,
            "spread_ratio": ratio.spread_ratio,
            "verdict": ratio.verdict,
            "samples_per_s": samples / step.median if samples else None,
            "slowdown": median(s / a for a, s in zip(alone, shared, strict=False)),
        }
    return figures


def _operators(session: Session, record: dict[str, Any]) -> None:
    answer = session.ask(0, do="operators", steps=session.settings.min_steps) if session.alive else None
    member = session.members[0]
    record["members"][0] |= {"outcome": member.outcome, "message": member.message}
    record["operators"] = answer["operators"] if answer else []
    if not answer:
        return
    try:
        graph = own_graph(member.workload)
    except InputError as error:  # keep the measurements
        record["notes"].append(f"operator times could not be matched to a graph: {error}")
    else:
        record |= {"graph": graph} if graph else {}
