"""Runs several policies and seeds on one scenario, in one process, several, or on Ray.

It writes results and plots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from profiling.ending import end_with_parent
from profiling.errors import CotenantError, UnavailableError
from profiling.files import write_json
from profiling.ray_workers import stdout_without_ray
from scheduling.simulator.assembly import build_scenario
from scheduling.simulator.result import SimulationResult
from scheduling.simulator.scenario import Scenario
from scheduling.simulator.scenario_spec import ScenarioSpec
from scheduling.traces.remarks import RowCount, by_reason

Report = Callable[[str, int, int, int], None]
"""Called with the current run (policy and seed), its jobs done and total, and the number of finished runs."""
# Error of runs that Ctrl-C stopped or left out.
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Run:
    """One policy with one seed at one load (None: as in the scenario): its result, or its error."""

    policy: str
    seed: int
    result: SimulationResult | None = None
    error: str = ""
    skipped: tuple[str, ...] = ()
    remarks: tuple[RowCount, ...] = ()
    load: float | None = None

    @property
    def name(self) -> str:
        return self.policy if self.load is None else f"{self.policy} at load {self.load:g}"

    @property
    def label(self) -> str:
        return f"{self.name}, seed {self.seed}"


def run_all(
    spec: ScenarioSpec,
    policies: Sequence[str],
    workers: int = 1,
    use_ray: bool = False,
    out: Path | None = None,
    seeds: int = 1,
    report: Report | None = None,
    gantt_filter: str = "",
    loads: Sequence[float] = (),
) -> list[Run]:
    """Run each policy with each seed at each load: load by load, policy by policy, seed by seed.

    A failing policy does not stop the others: its run has the error, as do runs that an interrupt (Ctrl-C)
    leaves undone.

    Args:
        out: folder for `results.json`, which is rewritten after every run, and the plots.
        seeds: number of seeds, starting at the scenario's.
        gantt_filter: Gantt charts show only GPUs whose type or place contains this text.
        loads: offered loads to run everything at; default: that of `spec`.

    Raises:
        UnavailableError: Ray is requested but not installed, or its cluster does not respond.
    """
    each: Sequence[float | None] = loads or [spec.load]
    tasks = [
        (replace(spec, seed=spec.seed + k, load=load), name, out is not None)
        for load in each
        for name in policies
        for k in range(seeds)
    ]
    if use_ray:
        finished = _on_ray(tasks)
    elif workers > 1 and len(tasks) > 1:
        finished = _in_processes(tasks, workers)
    else:

        def on_progress(label: str, done: int, total: int) -> None:
            if report is not None:
                report(label, done, total, len(runs))

        finished = _here(tasks, on_progress)
    runs: list[Run] = []
    try:
        for (own, _, _), found in zip(tasks, finished, strict=True):
            run = replace(found, load=own.load if loads else None)
            runs.append(run)
            if report is not None:
                report(run.label, 0, 0, len(runs))
            if out is not None:
                write_json(
                    out / "results.json", {"policies": summarize(runs), "runs": [_body(r) for r in runs]}
                )
    except KeyboardInterrupt:
        if not runs:
            raise
        runs += [
            Run(name, own.seed, error=INTERRUPTED, load=own.load if loads else None)
            for own, name, _ in tasks[len(runs) :]
        ]
    if out is not None:
        _plot(runs, out, gantt_filter)
    return runs


def _plot(runs: Sequence[Run], out: Path, gantt_filter: str) -> None:
    from scheduling.simulator.plots import plot_all

    done: dict[str, list[SimulationResult]] = {}
    for run in runs:
        if run.result is not None:
            done.setdefault(run.name, []).append(run.result)
    plot_all(done, out, gantt_filter)


def summarize(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Per policy (and load, if there are several), means over its seeds of the figures of `to_json`.

    If there are several seeds, also `seeds` and the `standard_error` of each figure.
    """
    bodies = []
    for policy, load in dict.fromkeys((run.policy, run.load) for run in runs):
        own = [run for run in runs if (run.policy, run.load) == (policy, load)]
        results = [run.result.to_json() for run in own if run.result is not None]
        errors = list(dict.fromkeys(run.error for run in own if run.error))
        # Some figures are missing for some seeds: deadlines if the only job with one is left out, or energy.
        first = results[0] if results else {}
        body = {key: value for key, value in first.items() if all(key in result for result in results)}
        body["policy"] = policy
        if len(results) > 1:
            values = {
                key: np.array([float(result[key]) for result in results])
                for key in body
                if isinstance(body[key], int | float)
            }
            body |= {key: float(v.mean()) for key, v in values.items()}
            body.pop("users", None)  # of one seed only
            body["standard_error"] = {
                key: float(v.std(ddof=1) / np.sqrt(len(v))) for key, v in values.items()
            }
        if results and len(own) > 1:
            body["seeds"] = [run.seed for run in own if run.result is not None]
        body |= {} if load is None else {"load": load}
        skipped = [name for run in own for name in run.skipped]
        body |= {"error": "; ".join(errors)} if errors else {}
        body |= {"skipped": skipped} if skipped else {}
        body |= by_reason(next((run.remarks for run in own if run.remarks), ()))  # of one log
        bodies.append(body)
    return bodies


def _body(run: Run) -> dict[str, Any]:
    if run.result is None:
        body: dict[str, Any] = {"error": run.error}
    else:
        body = run.result.to_json()
    body |= {"policy": run.policy, "seed": run.seed}
    body |= {"skipped": list(run.skipped)} if run.skipped else {}
    return body if run.load is None else body | {"load": run.load}


Task = tuple[ScenarioSpec, str, bool]
OnProgress = Callable[[str, int, int], None]


def _run(spec: ScenarioSpec, policy: str, record: bool) -> Run:
    """A run from its description, for another process."""
    try:
        return _run_on(build_scenario(spec), spec, policy, record)
    except CotenantError as error:
        return Run(policy, spec.seed, error=error.message)


def _run_on(
    scenario: Scenario,
    spec: ScenarioSpec,
    policy: str,
    record: bool,
    report: OnProgress = lambda *_: None,
) -> Run:
    skipped, remarks = tuple(scenario.skipped), tuple(scenario.remarks)
    label = Run(policy, spec.seed).label
    try:
        result = scenario.run(policy, partial(report, label), record)
    except CotenantError as error:
        return Run(policy, spec.seed, error=error.message, skipped=skipped, remarks=remarks)
    for job in result.jobs:  # agents hold tables that are not needed after the run
        job.agent = None
    return Run(policy, spec.seed, result, skipped=skipped, remarks=remarks)


def _here(tasks: Sequence[Task], report: OnProgress) -> Iterator[Run]:
    """Sequentially, each on its own scenario, because the last digits of a predictor depend on earlier
    queries."""
    for number, (spec, policy, record) in enumerate(tasks):
        try:
            scenario = build_scenario(spec)
        except CotenantError as error:
            if number == 0:  # nothing done yet, so nothing is lost
                raise
            yield Run(policy, spec.seed, error=error.message)
            continue
        yield _run_on(scenario, spec, policy, record, report)


def _in_processes(tasks: Sequence[Task], workers: int) -> Iterator[Run]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    # Without `end_with_parent`, the workers would wait for tasks forever if this process is killed.
    with ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), end_with_parent) as pool:
        yield from pool.map(_run, *zip(*tasks, strict=True))


def _on_ray(tasks: Sequence[Task]) -> Iterator[Run]:
    try:
        import ray
    except ImportError:
        raise UnavailableError(
            "Ray is not installed",
            expected="the extra `ray`",
            hint="pip install 'cotenant[ray]', or omit --ray",
        ) from None
    with stdout_without_ray():
        started = not ray.is_initialized()
        if started:
            try:
                ray.init(include_dashboard=False, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                raise UnavailableError(
                    "no Ray cluster responds",
                    expected="one at the address of RAY_ADDRESS, if that is set",
                    got=str(error),
                    hint="unset RAY_ADDRESS to use the cluster of this machine, or to start one",
                ) from None
        try:
            remote = ray.remote(_run)
            answers = [remote.remote(*task) for task in tasks]
            for (spec, policy, _), answer in zip(tasks, answers, strict=True):
                try:
                    run = ray.get([answer])[0]
                except ray.exceptions.RayError as error:  # a worker or its node is gone; the others continue
                    run = Run(policy, spec.seed, error=f"Ray: {str(error).strip().splitlines()[-1]}")
                yield run
        finally:
            if started:
                ray.shutdown()
