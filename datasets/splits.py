"""Named splits of co-location sets into what is learned from and what is scored.

A split is a list of folds and a fold is two lists of set ids, so a result can be repeated from what it stored. Whole
sets are moved, never members; the two directions of a pair are one set.

| kind | held out together |
|---|---|
| `random` | one set: other batch sizes of the same two models may be learned from. Flatters; for comparison only |
| `by-pair` | all sets of the same architectures, over all batch sizes, precisions, devices and campaigns |
| `by-model` | all sets with an architecture: it was never seen, not even as a partner |
| `by-device` | all sets on a device |
| `by-campaign`, `by-source` | all sets of a measuring campaign, of a publisher |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiling.errors import InputError, UnknownNameError
from profiling.files import read_json, write_json

if TYPE_CHECKING:
    import pandas as pd

SPLIT_FORMAT = "cotenant-split"
KINDS = ("random", "by-pair", "by-model", "by-device", "by-campaign", "by-source")
_COLUMNS = {"by-device": "device", "by-campaign": "campaign", "by-source": "source"}


@dataclass(frozen=True, slots=True)
class Fold:
    """Set ids to learn from and set ids to score; `name` says what is held out."""

    name: str
    train_set_ids: tuple[str, ...]
    test_set_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        both = set(self.train_set_ids) & set(self.test_set_ids)
        if both:
            raise InputError(
                f"fold {self.name!r} has a set on both sides", expected="disjoint sides", got=min(both)
            )


def make_split(colocation: pd.DataFrame, kind: str, seed: int = 0, folds: int = 5) -> list[Fold]:
    """Split the sets of a `colocation` table.

    Args:
        colocation: the table; its order has no influence.
        kind: one of `KINDS`.
        seed: of the assignment of groups to folds; only `random` and `by-pair` have a choice to make.
        folds: number of folds of `random` and `by-pair`; the other kinds have one for each value.

    Returns:
        folds in order of their names; each set is in the test side of at least one.

    Raises:
        UnknownNameError: there is no such kind.
        InputError: there are too few groups for two sides.
    """
    if kind not in KINDS:
        raise UnknownNameError("no such split", expected="one of " + ", ".join(KINDS), got=kind)
    groups = _groups(colocation, kind)
    values = sorted({value for held in groups.values() for value in held})
    if kind in ("random", "by-pair"):
        if folds < 2 or len(values) < folds:
            raise InputError(
                f"split {kind} needs at least as many groups as folds",
                expected="2 folds or more, and as many groups",
                got=f"{folds} folds, {len(values)} groups",
            )
        # Ordered by a hash, so that the folds are the same with every version of every library.
        values.sort(key=lambda value: hashlib.sha256(f"{seed}/{value}".encode()).digest())
        fold_of = {value: f"fold-{position % folds + 1}" for position, value in enumerate(values)}
        groups = {set_id: frozenset(fold_of[v] for v in held) for set_id, held in groups.items()}
        values = sorted(set(fold_of.values()))
    elif len(values) < 2:
        raise InputError(
            f"split {kind} needs two values to hold one out",
            expected="at least 2",
            got=", ".join(values) or "no rows",
        )
    result = []
    for value in values:
        test = tuple(sorted(set_id for set_id, held in groups.items() if value in held))
        train = tuple(sorted(set_id for set_id, held in groups.items() if value not in held))
        if not train:
            raise InputError(
                f"split {kind}: every set is held out with {value}", expected="sets without it", got="none"
            )
        result.append(Fold(value, train, test))
    return result


def _groups(colocation: pd.DataFrame, kind: str) -> dict[str, frozenset[str]]:
    """Set id -> the values whose fold holds it out."""
    sets = colocation.groupby("set_id", sort=True)
    if kind == "random":
        return {str(set_id): frozenset([str(set_id)]) for set_id in sets.groups}
    if kind in _COLUMNS:
        return {str(set_id): frozenset([str(v)]) for set_id, v in sets[_COLUMNS[kind]].first().items()}
    members = {str(set_id): tuple(sorted(names)) for set_id, names in sets["architecture"]}
    if kind == "by-pair":
        return {set_id: frozenset([" + ".join(names)]) for set_id, names in members.items()}
    return {set_id: frozenset(names) for set_id, names in members.items()}


def save_split(path: Path | str, folds: Iterable[Fold], **about: Any) -> Path:
    """Write folds as JSON; `about` (kind, seed, data) goes with them."""
    body = [{"name": f.name, "train": list(f.train_set_ids), "test": list(f.test_set_ids)} for f in folds]
    return write_json(path, {"format": SPLIT_FORMAT, "version": 1, **about, "folds": body})


def load_split(path: Path | str) -> list[Fold]:
    """Read what `save_split` wrote.

    Raises:
        InputError: not such a file.
    """
    body = read_json(path)
    if not isinstance(body, Mapping) or body.get("format") != SPLIT_FORMAT:
        raise InputError(
            f"{path} is not a split", expected=f"format {SPLIT_FORMAT!r}", got=type(body).__name__
        )
    try:
        return [Fold(f["name"], tuple(f["train"]), tuple(f["test"])) for f in body["folds"]]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is a damaged split", expected="folds of name, train, test", got=repr(error)
        ) from None


def select_sets(colocation: pd.DataFrame, set_ids: Iterable[str]) -> pd.DataFrame:
    """The rows of `set_ids`, in the table's order."""
    return colocation[colocation["set_id"].isin(set(set_ids))].reset_index(drop=True)
