"""Runs a protocol: first the missing cells (predictor, fold, seed), then the scores of all.

Every cell is stored with a fingerprint of the rows, the fold, the predictor's version and the seed. A run
that was stopped resumes where it was; a cell whose fingerprint no longer matches is run again.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle
from datasets.splits import Fold
from datasets.targets import get_target
from predictor.evaluation.metrics import bootstrap, bounds_kept, score
from predictor.evaluation.protocols.protocol import Trial
from predictor.evaluation.protocols.registry import Contender
from profiling.errors import CotenantError
from profiling.files import read_json, write_json

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Cell:
    """One fit of one predictor: on one fold, with one seed."""

    contender: Contender
    fold: Fold
    seed: int

    @property
    def file(self) -> Path:
        """Path relative to the protocol's folder."""
        return (
            Path("cells") / self.contender.name / f"{self.fold.name.replace('/', '_')}-seed-{self.seed}.json"
        )


@dataclass(frozen=True)
class Plan:
    """Plan of a run.

    Attributes:
        cells: all cells, in order.
        missing: those without a valid stored result.
        seconds: rough cost of the missing ones.
    """

    trial: Trial
    folder: Path
    cells: tuple[Cell, ...]
    missing: tuple[Cell, ...]
    seconds: float


# Maps a plan to the results of its missing cells, in any order.
Spread = Callable[[Plan], Iterable[tuple[Cell, dict[str, Any]]]]


def make_plan(trial: Trial, contenders: Sequence[Contender], seeds: Sequence[int], folder: Path) -> Plan:
    """List the cells of the `contenders` that take part, and which of them have yet to be run.

    A predictor that does not depend on its seed is still run for every seed.
    """
    cells = tuple(
        Cell(contender, fold, seed)
        for contender in contenders
        if trial.protocol.admits(contender)
        for seed in seeds
        for fold in trial.folds
    )
    data = data_fingerprint(trial)
    missing = tuple(cell for cell in cells if not _holds(folder, cell, data, trial))
    return Plan(trial, folder, cells, missing, sum(cell.contender.seconds_per_fold for cell in missing))


def run_missing(
    plan: Plan, done: Callable[[Cell], None] = lambda _cell: None, spread: Spread | None = None
) -> None:
    """Run the missing cells of `plan`; `done` is called after each is stored.

    Args:
        plan: the plan.
        done: called with each stored cell.
        spread: runs the cells; None: this process, one after another.
    """
    data = data_fingerprint(plan.trial)
    for cell, result in (spread or one_after_another)(plan):
        fingerprint = {"fingerprint": _fingerprint(cell, data, plan.trial)}
        write_json(plan.folder / cell.file, fingerprint | result)
        done(cell)


def one_after_another(plan: Plan) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Results of the missing cells of `plan`, run in this process."""
    for cell in plan.missing:
        yield cell, run_cell(plan.trial, cell)


def run_cell(trial: Trial, cell: Cell) -> dict[str, Any]:
    """Fit and predict one cell.

    Returns:
        `predicted` (and `lower`, `upper`) for the test rows of the cell's fold, or why it `cannot`; and
        `seconds`.
    """
    train, test = trial.bundles(cell.fold)
    started = time.perf_counter()
    result: dict[str, Any] = {}
    try:
        result = _fit_and_ask(cell, train, test.without_targets())
    except CotenantError as error:
        # The contender states that it cannot; others still can. Any other error is a bug and stops the run.
        result["cannot"] = error.message
    return result | {"seconds": round(time.perf_counter() - started, 3)}


def _fit_and_ask(cell: Cell, train: Bundle, test: Bundle) -> dict[str, Any]:
    predictor: Any = cell.contender.make()
    predictor.fit(train, cell.seed)
    result = {"predicted": _numbers(predictor.predict(test))}
    if hasattr(predictor, "predict_interval"):
        lower, upper = predictor.predict_interval(test)
        result |= {"lower": _numbers(lower), "upper": _numbers(upper)}
    if len(result["predicted"]) != len(test.rows):
        raise AssertionError(
            f"{cell.contender.name} gave {len(result['predicted'])} values for {len(test.rows)} rows"
        )
    return result


def _numbers(values: NDArray[np.float64]) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]


def collect(plan: Plan, resamples: int = 1000) -> dict[str, Any]:
    """Score the stored results, predictor by predictor, over all folds and seeds together.

    Returns:
        name -> `metrics` with 95 % `intervals`, `held_out` (rows of the held-out architecture itself),
        `by_seed`, `bounds`, `seconds_per_fold`, and a breakdown by the protocol's columns (`by_model`,
        `by_device`, ...); `unanswered` if a predictor cannot answer all rows; or `not_applicable` with the
        reason.
    """
    sides = {fold.name: plan.trial.bundles(fold)[1] for fold in plan.trial.folds}
    cells: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        cells.setdefault(cell.contender.name, []).append(cell)
    return {name: _collect_one(plan, own, sides, resamples) for name, own in cells.items()}


def _collect_one(
    plan: Plan, cells: Sequence[Cell], sides: dict[str, Bundle], resamples: int
) -> dict[str, Any]:
    import pandas as pd

    contender, protocol = cells[0].contender, plan.trial.protocol
    stored = [read_json(plan.folder / cell.file) for cell in cells]
    for one in stored:
        if "cannot" in one:
            return {"not_applicable": one["cannot"]}
    columns = list(dict.fromkeys(("set_id", "architecture", protocol.unit, *protocol.by)))
    parts = [
        _answered_rows(cell, sides[cell.fold.name], one, columns)
        for cell, one in zip(cells, stored, strict=True)
    ]
    rows = pd.concat(parts, ignore_index=True)
    unsaid = int(rows.loc[rows["point"], "predicted"].isna().sum())
    if unsaid > (MOST_UNANSWERED * rows["point"].sum() if contender.partial else 0):
        return {"not_applicable": f"no prediction for {unsaid} of {int(rows['point'].sum())} rows"}
    points = rows[rows["point"] & rows["predicted"].notna()]
    result: dict[str, Any] = {
        "version": contender.current_version,
        **({"unanswered": unsaid} if unsaid else {}),
        "metrics": _score(points),
        "intervals": bootstrap(
            points["y"],
            points["predicted"],
            points[_drawn(points, protocol.unit)],
            resamples if len(points) < MANY else resamples // 10,
        ),
        "by_seed": {str(s): _score(part)["mape_percent"] for s, part in points.groupby("seed")},
        "seconds_per_fold": round(float(np.mean([one["seconds"] for one in stored])), 2),
    }
    if protocol.split == "by-model":
        own = points[points["architecture"] == points["fold"]]
        if get_target(protocol.target).of_set:
            own = points  # a set belongs to all its members
        result["held_out"] = _score(own)
        result["by_model"] = {str(k): _score(part) for k, part in own.groupby("fold")}
    for column in protocol.by:
        name = "by_model" if column == "architecture" else f"by_{column}"
        if name not in result and (column == "architecture" or points[column].nunique() > 1):
            result[name] = {str(k): _score(part) for k, part in points.groupby(column)}
    bounds = bounds_kept(rows["predicted"], rows["at_least"], rows["at_most"])
    return result | ({"bounds": bounds} if bounds["n"] else {})


def _answered_rows(cell: Cell, test: Bundle, stored: dict[str, Any], columns: list[str]) -> pd.DataFrame:
    """The rows of a cell's test side with their targets and the stored answers."""
    at_least, at_most = test.bounds
    answer = {
        key: np.array(stored[key], dtype=np.float64)
        for key in ("predicted", "lower", "upper")
        if key in stored
    }
    return test.rows[columns].assign(
        fold=cell.fold.name,
        seed=cell.seed,
        y=test.y,
        point=test.points,
        at_least=at_least,
        at_most=at_most,
        **answer,
    )


# Largest share of unanswered rows at which a partial predictor is scored on the others.
MOST_UNANSWERED = 0.5
# From this many rows on, intervals are narrow, and a tenth of the resamples is enough.
MANY = 20_000
# With fewer units than this, resampling units says little about others, so rows are resampled instead.
ENOUGH_UNITS = 20


def _drawn(points: Any, unit: str) -> str:
    """The column whose values the bootstrap resamples whole."""
    return unit if points[unit].nunique() >= ENOUGH_UNITS else "set_id"


def _score(rows: Any) -> dict[str, Any]:
    ends = {end: rows[end] for end in ("lower", "upper") if end in rows and rows[end].notna().all()}
    return score(rows["y"], rows["predicted"], **ends)


def _holds(folder: Path, cell: Cell, data: str, trial: Trial) -> bool:
    path = folder / cell.file
    if not path.is_file():
        return False
    stored = read_json(path)
    # A failure may have been due to a missing file, and trying again costs little.
    return "cannot" not in stored and stored.get("fingerprint") == _fingerprint(cell, data, trial)


def _fingerprint(cell: Cell, data: str, trial: Trial) -> str:
    body = [
        data,
        trial.protocol.target,
        trial.protocol.with_solo,
        cell.contender.name,
        cell.contender.current_version,
        cell.seed,
        cell.fold.train_set_ids,
        cell.fold.test_set_ids,
    ]
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()


def data_fingerprint(trial: Trial) -> str:
    import pandas as pd

    digest = hashlib.sha256()
    related = [] if trial.related is None else [trial.related]
    for frame in (trial.frame, trial.solo, *trial.known.values(), *related):
        # Protocols do not read the flag, and tables written earlier lack it.
        rows = frame.drop(columns="disturbed", errors="ignore")
        digest.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
    return digest.hexdigest()
