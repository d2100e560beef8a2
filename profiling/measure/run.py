"""Executes one `RunRequest` and returns its record."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from profiling.devices import get_device, has_mig, mig_layout, split_device
from profiling.devices.discovery import visible_gpu
from profiling.devices.mig import MIG_OPTION
from profiling.errors import InputError, UnknownNameError
from profiling.measure.device_usage import UsageMeter
from profiling.measure.environment import device_name
from profiling.measure.operators import own_graph
from profiling.measure.record import member_entry, name_graphs, new_record, solo_figures
from profiling.measure.request import NotMeasurableError, RunRequest
from profiling.measure.session import Session
from profiling.measure.settings import MeasureSettings
from profiling.measure.sharing import sharing_in_force
from profiling.measure.statistics import Window, common_window, summarize, within

Progress = Callable[[str], None]


def measure(
    request: RunRequest, settings: MeasureSettings = MeasureSettings(), progress: Progress = lambda _: None
) -> dict[str, Any]:
    """Measure the jobs of `request`.

    The same processes are measured alone and together: in every repeat, each member first runs alone while the
    others are paused, then all run. Ratios are taken within a repeat, so that drift between repeats (clocks, other
    load on the machine) cancels.

    Args:
        request: what to measure.
        settings: windows, repeats and limits.
        progress: called with a short text at each stage.

    Returns:
        The record (see docs/measuring.md): JSON-serialisable, with one entry per member. Under MIG, an entry's
        `device` is its slice. The `outcome` of a member states whether it ran out of memory or died; the others keep
        what was measured while all were alive.

    Raises:
        InputError: this process may not use the configured CPU core.
        NotMeasurableError: the device lacks a job's precision, a loader is to feed a job whose data wait on the device,
            a factory is missing or fails, or a job trains nothing.
        UnavailableError: no such device, or torch cannot use it.
        SharesNotEnforcedError: MPS cannot enforce the requested SM shares.
    """
    catalogue_name = device_name(request.device)
    _check_precisions(request, catalogue_name)
    _check_host_input(request, settings)
    if request.kind == "ddp":
        from profiling.measure.ddp import measure_ddp

        record = measure_ddp(request, settings, catalogue_name)
    else:
        record = _measure(request, settings, catalogue_name, progress)
    name_graphs(record)
    return record


def _check_precisions(request: RunRequest, device_name: str) -> None:
    """Raise `NotMeasurableError` if the device lacks a job's precision, for which torch would run another."""
    try:
        device = get_device(device_name)
    except UnknownNameError:  # a GPU outside the catalogue
        return
    for workload in request.workloads:
        try:
            device.check_precision(workload.precision)
        except InputError as error:
            raise NotMeasurableError(
                error.detail, expected=error.expected, got=error.got, hint=error.hint
            ) from None


def _check_host_input(request: RunRequest, settings: MeasureSettings) -> None:
    for workload in request.workloads:
        if workload.data_on_device and settings.host_input != "resident":
            raise NotMeasurableError(
                f"{workload.model}: a {settings.host_input} feeds no job whose data wait on the device",
                expected="host_input resident, or no data_on_device",
                got=str(workload),
            )


def _measure(
    request: RunRequest, settings: MeasureSettings, catalogue_name: str, progress: Progress
) -> dict[str, Any]:
    """The record of a run in one process per member."""
    began = time.monotonic()
    record = new_record(request, settings, catalogue_name)
    core = pinned_core(settings) if request.device == "cpu" else None
    slices = len(request.workloads) if request.sharing == "mig" else 1
    meter = UsageMeter(request.device, settings, slices)
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
            session.require_sound()
            _warm_all(session, record, progress)
            session.require_sound()
            if sharing.mode == "mig":
                _name_slices(record, sharing.slices)
            sharing.confirm(len(session.alive))
            if sharing.limited:
                counts = [member.facts.get("sm_count") for member in session.members]
                sharing.compare_limits(shares, counts, visible_gpu().sm_count)
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


def _name_slices(record: dict[str, Any], profiles: Sequence[str]) -> None:
    """Record the whole card, and every member's own slice of it."""
    card, _ = split_device(record["device"])
    record["device"] = card
    layout = mig_layout(card) if has_mig(card) else None
    for member, profile in zip(record["members"], profiles, strict=True):
        if profile:
            known = layout.profile(profile).short if layout else profile
            member["device"] = f"{card}{MIG_OPTION}{known}"


def pinned_core(settings: MeasureSettings) -> int | None:
    """The core that members share: the configured one, or the last allowed one, which the system uses least.

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
            if not warm["finite"]:
                record["notes"].append(
                    f"{session.members[i].workload}: the loss is infinite or NaN, so its steps may take other times than "
                    "in training"
                )
    record["members"] = [member_entry(m) for m in session.members]


class _Windows:
    """Measures windows of a session, and repeats those in which other processes used the core.

    Attributes:
        disturbed: number of disturbed windows.
        kept_disturbed: number of these that were kept, because no retry was left.
    """

    def __init__(self, session: Session, settings: MeasureSettings, meter: UsageMeter) -> None:
        self._session, self._settings, self._meter = session, settings, meter
        self.disturbed = self.kept_disturbed = 0

    def measure(self, kind: str, members: Sequence[int], length_s: float) -> list[Window] | None:
        """The whole steps of each of `members` in one window of kind `alone` or `together`.

        None if a member died or completed no step.
        """
        for attempt in range(self._settings.retries + 1):
            self._meter.begin()
            answers = self._session.phase(members, length_s)
            usage = self._meter.end()
            if len(answers) < len(members):
                return None
            quiet = self._meter.was_quiet(answers)
            self.disturbed += not quiet
            if quiet or attempt == self._settings.retries:
                self.kept_disturbed += not quiet
                break
        self._meter.keep(kind, answers, usage, [m.process.pid for m in self._session.members])
        boundaries = {i: answers[i]["boundaries"] for i in members}
        bounds = common_window(list(boundaries.values()))
        windows = [within(boundaries[i], *bounds) for i in members]
        return None if None in windows else [w for w in windows if w is not None]


def _windows(
    session: Session, settings: MeasureSettings, meter: UsageMeter, record: dict[str, Any], progress: Progress
) -> None:
    """Measure all repeats, and add them and every member's results to the record."""
    everyone = range(len(session.members))
    together = len(everyone) > 1
    windows = _Windows(session, settings, meter)
    if together and len(session.alive) == len(everyone):
        # Warm up together: caches, clocks, the scheduler's shares.
        session.phase(everyone, settings.window_s / 2)
    repeats: list[dict[str, Any]] = []
    disturbed_repeats = 0
    for repeat in range(settings.repeats):
        if len(session.alive) < len(everyone):
            break
        progress(f"repeat {repeat + 1} of {settings.repeats}")
        before = windows.kept_disturbed
        measured = _repeat(session, settings, windows)
        if measured is not None:
            repeats.append(measured)
            disturbed_repeats += windows.kept_disturbed > before
    record["repeats"], record["disturbed_windows"] = repeats, windows.disturbed
    for i, member in enumerate(session.members):
        entry = record["members"][i]
        entry |= {"outcome": member.outcome, "message": member.message}
        if member.alive and not repeats and len(session.alive) == len(everyone):
            entry |= {"outcome": "failed", "message": "no window contained a complete step of every member"}
        alone = [r["alone"][i][1] for r in repeats]
        shared = [r["together"][i][1] for r in repeats] if together else []
        entry |= _figures(alone, shared, settings, entry.get("samples_per_step")) | meter.member(i)
        if 3 * disturbed_repeats > len(repeats):
            entry |= {name: "disturbed" for name in ("solo_verdict", "verdict") if name in entry}
    record["set"] = meter.whole()


def _repeat(session: Session, settings: MeasureSettings, windows: _Windows) -> dict[str, Any] | None:
    """Each member alone, then all together; None if any window failed, because ratios need a whole repeat."""
    everyone = range(len(session.members))
    together = len(everyone) > 1
    alone: list[Window] = []
    for i in everyone:
        single = windows.measure("alone", [i], settings.alone_window_s if together else settings.window_s)
        if single is None:
            return None
        alone += single
    whole: list[Window] | None = []
    if together:
        all_live = len(session.alive) == len(everyone)
        whole = windows.measure("together", everyone, settings.window_s) if all_live else None
    if whole is None:
        return None
    return {"alone": [_rounded(w) for w in alone], "together": [_rounded(w) for w in whole]}


def _rounded(window: Window) -> list[float]:
    """Number of steps, mean step time, and median and MAD of single steps, in seconds."""
    return [
        window.steps,
        *(round(v, 9) for v in (window.step_time_s, window.step_median_s, window.step_mad_s)),
    ]


def _figures(
    alone: list[float], shared: list[float], settings: MeasureSettings, samples: int | None
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if alone:
        figures |= solo_figures(alone, settings.stable_ratio)
        figures["solo_samples_per_s"] = samples / figures["solo_step_time_s"] if samples else None
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
    except InputError as error:  # keep the times
        record["notes"].append(f"operator times could not be matched to a graph: {error}")
    else:
        record |= {"graph": graph} if graph else {}
