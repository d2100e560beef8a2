"""Named splits of rows into training and test sides.

A split is a list of folds and a fold is two lists of units, so a result can be repeated from what it stored.
Units are never divided. Of co-location sets the unit is the set, never a member; the two directions of a pair
are one set. Of rows of other tables it is the value of a column, such as the family or the device.

| kind | held out together |
|---|---|
| `random` | one unit: other batch sizes of the same two models may be learned from. Flatters; for comparison only |
| `by-pair` | all sets of the same architectures, over all batch sizes, precisions, devices and campaigns |
| `by-model` | all units with an architecture: it was never seen, not even as a partner |
| `by-cell` | a fifth of the architectures |
| `by-family` | a tenth of the families |
| `by-device` | all units on a GPU type, its slices included |
| `by-campaign`, `by-source` | all units of a measuring campaign, of a publisher |

Names of the same network count as one architecture, under the first of the names in the table.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets.families import family_of
from profiling.collections.networks import one_name
from profiling.devices import split_device
from profiling.errors import InputError, UnknownNameError
from profiling.files import write_json

if TYPE_CHECKING:
    import pandas as pd

SPLIT_FORMAT = "cotenant-split"
# Kind -> the column whose values are held out, and the number of folds over which they are distributed; None:
# one fold per value.
_RULES: dict[str, tuple[str, int | None]] = {
    "random": ("", 5),
    "by-pair": ("architecture", 5),
    "by-model": ("architecture", None),
    "by-cell": ("architecture", 5),
    "by-family": ("family", 10),
    "by-device": ("device", None),
    "by-campaign": ("campaign", None),
    "by-source": ("source", None),
}
KINDS = tuple(_RULES)
EVALUATED = ("none", "by-pair", "by-model", "by-device", "by-campaign", "by-source")
"""Splits of `cotenant evaluate`; with `none`, the model is scored as it is."""


def check_evaluated(split: str) -> None:
    """Raise `UnknownNameError` unless `cotenant evaluate` has the split."""
    if split not in EVALUATED:
        raise UnknownNameError("unknown split", expected="one of " + ", ".join(EVALUATED), got=split)


@dataclass(frozen=True, slots=True)
class Fold:
    """Units (set ids, families, ...) to learn from and to score; `name` states what is held out."""

    name: str
    train_set_ids: tuple[str, ...]
    test_set_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        both = set(self.train_set_ids) & set(self.test_set_ids)
        if both:
            raise InputError(
                f"fold {self.name!r} has a set on both sides", expected="disjoint sides", got=min(both)
            )


def make_split(
    frame: pd.DataFrame,
    kind: str,
    seed: int = 0,
    folds: int | None = None,
    unit: str = "set_id",
    skip_empty: bool = False,
) -> list[Fold]:
    """Split the units of a table.

    Args:
        frame: the table; its order has no influence.
        kind: one of `KINDS`.
        seed: seed of the assignment of values to folds, if there is a choice.
        folds: number of folds, for kinds that distribute values; the others have one per value.
        unit: column whose values are never divided between sides.
        skip_empty: leave out, with a warning, folds that would hold out every unit, as for a model that is in every
            set.

    Returns:
        folds ordered by name; each unit is in the test side of at least one, unless `skip_empty`.

    Raises:
        UnknownNameError: no such kind.
        InputError: too few groups for two sides.
    """
    if kind not in KINDS:
        raise UnknownNameError("unknown split", expected="one of " + ", ".join(KINDS), got=kind)
    groups = _groups(frame, kind, unit)
    values = sorted({value for held in groups.values() for value in held})
    default = _RULES[kind][1]
    if default is not None:
        fold_of = deal(values, folds or default, seed)
        groups = {name: frozenset(fold_of[v] for v in held) for name, held in groups.items()}
        values = sorted(set(fold_of.values()))
    elif len(values) < 2:
        raise InputError(
            f"split {kind} needs at least two values",
            expected="at least 2",
            got=", ".join(values) or "no rows",
        )
    result, skipped = [], []
    for value in values:
        test = tuple(sorted(name for name, held in groups.items() if value in held))
        train = tuple(sorted(name for name, held in groups.items() if value not in held))
        if train:
            result.append(Fold(value, train, test))
        else:
            skipped.append(value)
    if skipped and not (skip_empty and result):
        raise InputError(
            f"split {kind}: every set is held out with {skipped[0]}", expected="sets without it", got="none"
        )
    for value in skipped:
        warnings.warn(
            f"split {kind}: {value} is in every set, so nothing is left to learn from without it: not held out",
            stacklevel=2,
        )
    return result


def pair_count(frame: pd.DataFrame) -> int:
    """Number of values that a split `by-pair` can hold out, which is its maximum number of folds."""
    return len(frozenset().union(*_groups(frame, "by-pair", "set_id").values()))


def deal(values: Iterable[str], folds: int, seed: int = 0) -> dict[str, str]:
    """Value -> name of the fold that holds it out.

    Raises:
        InputError: fewer values than folds.
    """
    # Ordered by a hash, so that the folds do not depend on library versions.
    ordered = sorted(set(values), key=lambda value: hashlib.sha256(f"{seed}/{value}".encode()).digest())
    if folds < 2 or len(ordered) < folds:
        raise InputError(
            "a split needs at least as many groups as folds",
            expected="2 folds or more, and as many groups",
            got=f"{folds} folds, {len(ordered)} groups",
        )
    return {value: f"fold-{position % folds + 1}" for position, value in enumerate(ordered)}


def _groups(frame: pd.DataFrame, kind: str, unit: str) -> dict[str, frozenset[str]]:
    """Unit -> the values whose fold holds it out."""
    column = _RULES[kind][0]
    if column == "family" and column not in frame:
        frame = frame.assign(family=frame["architecture"].map(family_of))
    if column == "architecture":
        same = one_name(frame["architecture"].astype(str))
        if column == unit:
            return {name: frozenset([first]) for name, first in same.items()}
        frame = frame.assign(architecture=frame["architecture"].astype(str).map(same))
    if column == "device" and column != unit:
        # Slices of a card are the same chip.
        frame = frame.assign(device=[split_device(str(name))[0] for name in frame["device"]])
    if not column or column == unit:
        return {str(name): frozenset([str(name)]) for name in sorted(set(frame[unit]))}
    members = {
        str(name): tuple(sorted(map(str, names))) for name, names in frame.groupby(unit, sort=True)[column]
    }
    if kind == "by-pair":
        return {name: frozenset([" + ".join(names)]) for name, names in members.items()}
    return {name: frozenset(names) for name, names in members.items()}


def save_split(path: Path | str, folds: Iterable[Fold], **about: Any) -> Path:
    """Write folds as JSON, together with `about` (kind, seed, data)."""
    body = [{"name": f.name, "train": list(f.train_set_ids), "test": list(f.test_set_ids)} for f in folds]
    return write_json(path, {"format": SPLIT_FORMAT, "version": 1, **about, "folds": body})


def select_sets(frame: pd.DataFrame, ids: Iterable[str], column: str = "set_id") -> pd.DataFrame:
    """The rows whose `column` is among `ids`, in the table's order."""
    return frame[frame[column].isin(set(ids))].reset_index(drop=True)
