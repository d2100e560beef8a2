"""Several policies on one scenario: in this process, in several, or on Ray; results and plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profiling.errors import UnavailableError
from profiling.files import write_json
from scheduling.simulator.result import SimulationResult
from scheduling.simulator.scenario import ScenarioSpec, build_scenario


def compare(
    spec: ScenarioSpec,
    policies: Sequence[str],
    workers: int = 1,
    use_ray: bool = False,
    out: Path | None = None,
) -> list[dict[str, Any]]:
    """Run each policy; the JSON of `cotenant simulate` for each, in the given order.

    Args:
        out: folder for `results.json` and the plots.

    Raises:
        UnavailableError: Ray is asked for and not installed.
    """
    record = out is not None
    if use_ray:
        results = _on_ray(spec, policies, record)
    elif workers > 1 and len(policies) > 1:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        with ProcessPoolExecutor(min(workers, len(policies)), mp_context=get_context("spawn")) as pool:
            results = list(pool.map(_run, [spec] * len(policies), policies, [record] * len(policies)))
    else:
        scenario = build_scenario(spec)
        results = [scenario.run(name, record=record) for name in policies]
    bodies = [r.to_json() for r in results]
    if out is not None:
        from scheduling.simulator.plots import plot_all

        write_json(out / "results.json", {"policies": bodies})
        plot_all(results, out)
    return bodies


def _run(spec: ScenarioSpec, policy: str, record: bool) -> SimulationResult:
    result = build_scenario(spec).run(policy, record=record)
    for job in result.jobs:  # agents hold tables; nobody needs them after the run
        job.agent = None
    return result


def _on_ray(spec: ScenarioSpec, policies: Sequence[str], record: bool) -> list[SimulationResult]:
    try:
        import ray
    except ImportError:
        raise UnavailableError(
            "Ray is not installed",
            expected="the extra `ray`",
            hint="pip install 'cotenant[ray]', or leave out --ray",
        ) from None
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False)
    try:
        task = ray.remote(_run)
        return list(ray.get([task.remote(spec, name, record) for name in policies]))
    finally:
        if started:
            ray.shutdown()
