from __future__ import annotations

import pandas as pd

from datasets.splits import make_split
from predictor.examples.cross_fit import ExampleFold, architecture_groups, cross_fit, fold_groups, sets_with
from predictor.examples.examples import examples_of

Tables = tuple[pd.DataFrame, pd.DataFrame]


def test_every_set_is_scored_by_a_fit_without_its_group(measured: Tables) -> None:
    examples, solo = examples_of(*measured), measured[1]
    scored: list[str] = []

    def ask(fold: ExampleFold) -> int:
        out = fold.group.architectures
        assert not out & set(fold.train.architectures)
        assert not out & set(fold.seen(solo).architecture)
        assert out == set(fold.unseen(solo).architecture)
        assert sets_with(fold.test, sorted(out)) == set(fold.test.set_ids)
        assert set(fold.train.set_ids) | set(fold.test.set_ids) == set(examples.set_ids)
        scored.extend(fold.test.set_ids)
        return len(fold.test.set_ids)

    for count in (2, 3, None):
        groups = architecture_groups(examples, count)
        assert len(groups) == (count or 4)
        assert sorted(name for group in groups for name in group.architectures) == [
            "alpha", "beta", "delta", "gamma",
        ]  # fmt: skip
        scored.clear()
        assert sum(cross_fit(examples, groups, ask)) == len(scored)
        assert set(scored) == set(examples.set_ids)


def test_folds_of_a_split_keep_their_sides(measured: Tables) -> None:
    examples = examples_of(*measured)
    by_pair = make_split(measured[0], "by-pair", 0)
    for fold, sides in zip(
        by_pair, cross_fit(examples, fold_groups(examples, by_pair), lambda fold: fold), strict=True
    ):
        assert (set(sides.train.set_ids), set(sides.test.set_ids)) == (
            set(fold.train_set_ids),
            set(fold.test_set_ids),
        )
    # Only an architecture that the train side lacks was never seen alone.
    by_model = fold_groups(examples, make_split(measured[0], "by-model", 0))
    assert [set(group.architectures) for group in by_model] == [{"alpha"}, {"beta"}, {"delta"}, {"gamma"}]


def test_fits_are_lazy_and_may_run_in_any_order(measured: Tables) -> None:
    examples = examples_of(*measured)
    names: list[str] = []
    each = iter(cross_fit(examples, architecture_groups(examples), lambda fold: names.append(fold.name)))
    next(each)
    assert names == ["left out 1"]
    backwards = cross_fit(
        examples,
        architecture_groups(examples),
        lambda fold: fold.name,
        lambda call, folds: [call(fold) for fold in reversed(list(folds))],
    )
    assert list(backwards) == ["left out 4", "left out 3", "left out 2", "left out 1"]
