"""Promotion of a registered version to champion.

It must match the champion on rows that neither has learned from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from predictor.evaluation.held_out import held_out_of
from predictor.evaluation.same_rows import Candidate, compare_on_same_rows
from predictor.fitted.mlflow_registry import (
    REGISTERED_NAME,
    champion_version,
    make_champion,
    shipped,
    versions,
)
from predictor.load import REGISTERED, load_predictor
from profiling.errors import ConflictError, CotenantError, UnavailableError, UnknownNameError

if TYPE_CHECKING:
    from pathlib import Path

    from predictor.examples.featurizer import GraphSource

# A challenger may have up to this factor of the champion's error.
_TIE = 1.001


def promote(
    version: str, data: Path | None = None, force: bool = False, graph_source: GraphSource | None = None
) -> dict[str, Any]:
    """Make `version` the champion, unless it is worse than the current one.

    If there is no champion, it is compared with the shipped predictor. Both predict the same rows, which
    neither has learned from.

    Args:
        version: registered version.
        data: folder of tables with these rows; by default the pairs held out of the training of `version`.
        force: promote it even if it is worse or cannot be compared.
        graph_source: source of the jobs' graphs.

    Returns:
        `promoted`, `version`, `champion` (None if there was none), `compared_with` (the champion, or the
        shipped predictor), each a row of `versions`; `same_rows`: see `compare_on_same_rows`, None if not
        compared, with the `reason`.

    Raises:
        UnknownNameError: no such version.
        InputError: `data` holds no tables.
        ConflictError: another promotion changed the champion during the comparison.
    """
    rows = {row["version"]: row for row in versions()}
    if version not in rows:
        raise UnknownNameError(
            f"no version {version}" + ("" if rows else ": no predictor registered yet"),
            expected="one of " + ", ".join(rows) if rows else None,
            hint=None if rows else "`cotenant train` registers one",
        )
    new, champion = rows[version], next((row for row in rows.values() if row["champion"]), None)
    against = champion or shipped()
    same_rows, reason = None, None
    if new is champion:
        promoted, reason = True, "it is already the champion"
    else:
        challenger = _candidate(new, graph_source)
        try:
            same_rows = _compared(challenger, against, data, graph_source)
        except CotenantError as error:
            # Bad input is the caller's to fix; any other obstacle is an answer.
            if not (force or isinstance(error, UnavailableError)):
                raise
            reason = str(error)
        promoted = force or (same_rows is not None and _not_worse(same_rows))
        now = champion_version()  # again, since the comparison takes a while
        if promoted and not force and now not in (version, champion and champion["version"]):
            raise ConflictError(
                f"version {version} was not promoted",
                expected=f"{against['version']}, with which it was compared, to stay the champion",
                got=f"{now or 'none'}, since another command changed it",
                hint="repeat the command",
            )
    make_champion(version, promoted)
    return {
        "promoted": promoted,
        "version": new | {"champion": promoted},
        "champion": champion,
        "compared_with": against,
        "same_rows": same_rows,
        "reason": reason,
    }


def _not_worse(same_rows: dict[str, Any]) -> bool:
    error = {role: scores["mape_percent"] for role, scores in same_rows["metrics"].items()}
    return bool(error["challenger"] <= error["incumbent"] * _TIE)


def _compared(
    challenger: Candidate, against: dict[str, Any], data: Path | None, graph_source: GraphSource | None
) -> dict[str, Any]:
    if data is not None:
        from datasets.sets import read_sets

        colocation, solo = read_sets(data)
    elif challenger.held_out is not None:
        colocation, solo = challenger.held_out.colocation, challenger.held_out.solo
    else:
        raise UnavailableError(
            f"{challenger.name} has no stored predictions of pairs held out of its training",
            expected="--data TABLES with sets that neither version was trained on",
            got="no --data",
        )
    return compare_on_same_rows(challenger, _candidate(against, graph_source), colocation, solo)


def _candidate(row: dict[str, Any], graph_source: GraphSource | None) -> Candidate:
    name = row["version"]
    registered = row["run_id"] is not None
    predictor = load_predictor(f"{REGISTERED}{REGISTERED_NAME}/{name}" if registered else name, graph_source)
    called = f"version {name}" if registered else "the shipped predictor"
    return Candidate(called, predictor, held_out_of(row["run_id"]))
