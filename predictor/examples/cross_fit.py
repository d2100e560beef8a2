"""Hold out a group, fit on the rest, predict the group.

This is the loop behind intervals, sweeps and refitted evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from predictor.examples.examples import Examples
from profiling.collections.networks import network_of, networks_of, one_name
from profiling.devices import split_device

if TYPE_CHECKING:
    import pandas as pd

    from datasets.splits import Fold

T = TypeVar("T")
# Kind of a split that holds out one value in each fold -> where a group states it.
_OF_SPLITS = {"by-device": "devices", "by-campaign": "campaigns", "by-source": "sources"}


@dataclass(frozen=True, slots=True)
class Group:
    """A group that is held out together.

    Attributes:
        name: for reports, and for files of stored stages.
        hidden: ids of sets that are not fitted on.
        scored: ids of the sets that are predicted, all of them hidden.
        architectures: those whose solo runs are not fitted on either, under whichever name of their networks.
        devices, campaigns, sources: those whose solo runs are not fitted on, either; of devices, nor those on slices.
    """

    name: str
    hidden: frozenset[str]
    scored: frozenset[str]
    architectures: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    campaigns: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()


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
        """Rows of the solo table to fit on: of other architectures, devices, campaigns and sources."""
        group = self.group
        hidden = self._of_held_out(solo)
        for column, values in (
            (solo["device"].map(lambda name: split_device(name)[0]), group.devices),
            (solo["campaign"], group.campaigns),
            (solo["source"], group.sources),
        ):
            if values:
                hidden |= column.isin(values)
        return solo[~hidden]

    def unseen(self, solo: pd.DataFrame) -> pd.DataFrame:
        """Rows of the solo table of the held-out architectures."""
        return solo[self._of_held_out(solo)]

    def _of_held_out(self, solo: pd.DataFrame) -> pd.Series[bool]:
        held_out = networks_of(self.group.architectures)
        return solo.architecture.isin([n for n in solo.architecture.unique() if network_of(n) in held_out])


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
    """Ids of the sets with a member of one of these architectures, under whichever name."""
    networks = networks_of(architectures)
    rows = np.array([network_of(name) in networks for name in examples.architectures], dtype=bool)
    return frozenset(examples.set_ids[s] for s in np.unique(examples.set_index[rows]))


def architecture_groups(examples: Examples, count: int | None = None) -> list[Group]:
    """Distribute architectures over at most `count` groups (None: one each).

    Each group is held out with all sets that contain one of its architectures. Names of the same network are one
    architecture.
    """
    first = one_name(examples.architectures)
    names = sorted(set(first.values()))
    count = len(names) if count is None else count
    groups = []
    for start in range(min(count, len(names))):
        group = frozenset(names[start::count])
        touched = sets_with(examples, sorted(group))
        held_out = frozenset(name for name, one in first.items() if one in group)
        groups.append(Group(f"left out {start + 1}", touched, touched, held_out))
    return groups


def fold_groups(examples: Examples, folds: Sequence[Fold], kind: str = "") -> list[Group]:
    """The folds of a split of set ids, as groups.

    Solo runs of an architecture that is only on the test side are held out, too, and those of the device, campaign or
    source that a split of that kind holds out. Folds with an empty side are skipped.

    Args:
        examples: all sets.
        folds: of a split of their ids.
        kind: kind of the split, see `datasets.splits`.
    """
    members: dict[str, set[str]] = {s: set() for s in examples.set_ids}
    for index, name in zip(examples.set_index.tolist(), examples.architectures, strict=True):
        members[examples.set_ids[index]].add(name)

    def seen(set_ids: Sequence[str]) -> set[str]:
        return set().union(*(members[s] for s in set_ids))

    def group(fold: Fold) -> Group:
        learned = networks_of(seen(fold.train_set_ids))
        held_out = {name for name in seen(fold.test_set_ids) if network_of(name) not in learned}
        return Group(
            fold.name,
            frozenset(examples.set_ids) - frozenset(fold.train_set_ids),
            frozenset(fold.test_set_ids),
            frozenset(held_out),
            **{name: frozenset([fold.name]) for held, name in _OF_SPLITS.items() if held == kind},
        )

    return [group(fold) for fold in folds if fold.train_set_ids and fold.test_set_ids]
