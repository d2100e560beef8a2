"""Hold out a group, fit on the rest, predict the group.

This is the loop behind intervals, sweeps and refitted evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from predictor.examples.examples import Examples

if TYPE_CHECKING:
    import pandas as pd

    from datasets.splits import Fold

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """A group that is held out together.

    Attributes:
        name: for reports, and for files of stored stages.
        hidden: ids of sets that are not fitted on.
        scored: ids of the sets that are predicted, all of them hidden.
        architectures: those whose solo runs are not fitted on either.
    """

    name: str
    hidden: frozenset[str]
    scored: frozenset[str]
    architectures: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ExampleFold:
    """One held-out group: sets to fit on, possibly none, and sets to predict."""

    group: Group
    train: Examples
    test: Examples

    @property
    def name(self) -> str:
        return self.group.name

    def seen(self, solo: pd.DataFrame) -> pd.DataFrame:
        """Rows of the solo table to fit on, of other architectures."""
        return solo[~solo.architecture.isin(self.group.architectures)]

    def unseen(self, solo: pd.DataFrame) -> pd.DataFrame:
        """Rows of the solo table of the held-out architectures."""
        return solo[solo.architecture.isin(self.group.architectures)]


def cross_fit(
    examples: Examples,
    groups: Iterable[Group],
    fit: Callable[[ExampleFold], T],
    run: Callable[[Callable[[ExampleFold], T], Iterable[ExampleFold]], Iterable[T]] = map,
) -> Iterable[T]:
    """The result of `fit` for each group, in order; by default computed lazily, one at a time.

    Args:
        examples: all sets.
        groups: those without a set to score are skipped.
        fit: fits on the `train` side and predicts the `test` side.
        run: runs the calls, e.g. `Executor.map`.
    """
    return run(fit, (_fold(examples, group) for group in groups if group.scored))


def _fold(examples: Examples, group: Group) -> ExampleFold:
    kept = [s for s in examples.set_ids if s not in group.hidden]
    return ExampleFold(group, examples.subset(kept), examples.subset(sorted(group.scored)))


def sets_with(examples: Examples, architectures: Sequence[str]) -> frozenset[str]:
    """Ids of the sets with a member of one of these architectures."""
    rows = np.isin(examples.architectures, architectures)
    return frozenset(examples.set_ids[s] for s in np.unique(examples.set_index[rows]))


def architecture_groups(examples: Examples, count: int | None = None) -> list[Group]:
    """Distribute architectures over at most `count` groups (None: one each).

    Each group is held out with all sets that contain one of its architectures.
    """
    names = sorted(set(examples.architectures))
    count = len(names) if count is None else count
    groups = []
    for start in range(min(count, len(names))):
        group = names[start::count]
        touched = sets_with(examples, group)
        groups.append(Group(f"left out {start + 1}", touched, touched, frozenset(group)))
    return groups


def fold_groups(examples: Examples, folds: Sequence[Fold]) -> list[Group]:
    """The folds of a split of set ids, as groups.

    Solo runs of an architecture that is only on the test side are held out, too. Folds with an empty side are
    skipped.
    """
    members: dict[str, set[str]] = {s: set() for s in examples.set_ids}
    for index, name in zip(examples.set_index.tolist(), examples.architectures, strict=True):
        members[examples.set_ids[index]].add(name)

    def seen(set_ids: Sequence[str]) -> set[str]:
        return set().union(*(members[s] for s in set_ids))

    return [
        Group(
            fold.name,
            frozenset(examples.set_ids) - frozenset(fold.train_set_ids),
            frozenset(fold.test_set_ids),
            frozenset(seen(fold.test_set_ids) - seen(fold.train_set_ids)),
        )
        for fold in folds
        if fold.train_set_ids and fold.test_set_ids
    ]
