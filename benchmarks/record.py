"""Write a benchmark's figures with date, machine and command."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profiling.files import read_json, write_json
from profiling.measure.environment import provenance

RESULTS = Path(__file__).parent / "results"
# An absolute path in an argument, such as that of `--data=/a/b` or `philly:/a/b.csv`, but not the one in a URL.
_PATH = re.compile(r"(?<![^=:,])/(?!/)[^,:]*")


def loop_ms() -> float:
    """Processor time of a fixed loop, as a measure of the machine's current speed under other load."""
    started, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number & 7
    return 1000 * (time.process_time() - started)


def stored_figures(name: str) -> dict[str, Any]:
    """The figures of `benchmarks/results/NAME.json`, none if there is no such file; raises `InputError` if it is
    not JSON."""
    path = RESULTS / f"{name}.json"
    return dict(read_json(path)["figures"]) if path.exists() else {}


def kept_rows(name: str, figure: str) -> list[dict[str, Any]]:
    """The stored rows of a figure, each with date, machine and command of its measurement (`run`), so that a later run
    can keep some of them.

    Raises:
        InputError: the record is not JSON.
    """
    path = RESULTS / f"{name}.json"
    body = read_json(path) if path.exists() else {"figures": {}}
    made = next((run for run in body.get("earlier", []) if figure in run["of"]), body)
    run = {key: made[key] for key in ("date", "machine", "command") if key in made}
    return [{"run": run, **row} for row in body["figures"].get(figure, ())]


def record(name: str, figures: dict[str, Any]) -> Path:
    """Write `figures` to `benchmarks/results/NAME.json` with date, machine and command, and print where."""
    return _written(name, {"figures": figures})


def record_part(name: str, part: dict[str, Any], renamed: Mapping[str, str] = MappingProxyType({})) -> Path:
    """`record` some figures and keep the others.

    `earlier` states date, machine and command of those that were kept, and which these are (`of`).

    Args:
        renamed: former names of figures to today's, under which they are kept unless there is a newer one.
    """
    path = RESULTS / f"{name}.json"
    stored = read_json(path) if path.exists() else {"figures": {}}
    figures, runs = stored.pop("figures"), stored.pop("earlier", [])
    for former in [name for name in figures if name in renamed]:
        name_now, value = renamed[former], figures.pop(former)
        if name_now in figures:
            runs = [{**run, "of": [name for name in run["of"] if name != former]} for run in runs]
        else:
            figures[name_now] = value
            runs = [
                {**run, "of": [name_now if name == former else name for name in run["of"]]} for run in runs
            ]
    known = {figure for run in runs for figure in run["of"]}
    runs.append({**stored, "of": [figure for figure in figures if figure not in known]})
    kept = ({**run, "of": [figure for figure in run["of"] if figure not in part]} for run in runs)
    earlier = [run for run in kept if run["of"]]
    return _written(name, {"figures": figures | part} | ({"earlier": earlier} if earlier else {}))


def _written(name: str, body: dict[str, Any]) -> Path:
    # Local paths mean nothing to a reader; the last part shows which data was used.
    words = [_PATH.sub(lambda path: Path(path[0]).name, word) for word in sys.argv[1:]]
    module = getattr(sys.modules["__main__"].__spec__, "name", f"benchmarks.{name}")
    command = shlex.join(["python", "-m", module, *words])
    path = write_json(RESULTS / f"{name}.json", provenance(command) | body)
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return path
