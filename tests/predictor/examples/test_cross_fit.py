from __future__ import annotations

import pandas as pd
import pytest

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


@pytest.mark.parametrize("kind", ["device", "campaign", "source"])
def test_solo_runs_of_a_held_out_place_are_not_learned_from(measured: Tables, kind: str) -> None:
    colocation, solo = (table.copy() for table in measured)
    half = sorted(set(colocation.set_id))[::2]
    for table, other in ((colocation, colocation.set_id.isin(half)), (solo, solo.index % 2 == 0)):
        table[kind] = "here"
        table.loc[other, kind] = "there"
    folds = make_split(colocation, f"by-{kind}")
    groups = fold_groups(examples_of(colocation, solo), folds, f"by-{kind}")
    for group, other in zip(groups, ("there", "here"), strict=True):
        fold = ExampleFold(group, *(examples_of(colocation, solo),) * 2)
        assert set(fold.seen(solo)[kind]) == {other}
        assert len(fold.seen(solo)) < len(solo)
    # Those of other kinds hide architectures only.
    assert not any(
        group.devices or group.campaigns or group.sources
        for group in fold_groups(examples_of(colocation, solo), make_split(colocation, "by-pair"), "by-pair")
    )


def test_slices_of_a_gpu_are_held_out_with_it(measured: Tables) -> None:
    colocation, solo = (table[table.device == "v100"].copy() for table in measured)
    names = sorted(set(colocation.set_id))
    for number, device in enumerate(("a100", "a100:mig=3g", "h100")):
        colocation.loc[colocation.set_id.isin(names[number::3]), "device"] = device
    solo = pd.concat(solo.assign(device=device) for device in ("a100", "a100:mig=2g", "h100"))
    folds = make_split(colocation, "by-device")
    assert [fold.name for fold in folds] == ["a100", "h100"]
    assert set(folds[1].test_set_ids) == set(names[2::3])
    examples = examples_of(colocation, solo)
    seen = [ExampleFold(g, examples, examples).seen(solo) for g in fold_groups(examples, folds, "by-device")]
    assert [set(rows.device) for rows in seen] == [{"h100"}, {"a100", "a100:mig=2g"}]


def test_names_of_one_network_are_held_out_together(measured: Tables) -> None:
    names = {"alpha": "resnet50-imagenet", "beta": "torchvision/resnet50"}
    colocation, solo = (table.assign(architecture=table.architecture.replace(names)) for table in measured)
    examples = examples_of(colocation, solo)
    first, *others = architecture_groups(examples)
    assert len(others) == 2
    for fold in (
        ExampleFold(next(g for g in (first, *others) if len(g.architectures) > 1), examples, examples),
        ExampleFold(fold_groups(examples, make_split(colocation, "by-model"))[-1], examples, examples),
    ):
        assert fold.group.architectures == set(names.values())
        assert not set(names.values()) & set(fold.seen(solo).architecture)
    # Also where one of them was measured alone only.
    alone = solo.assign(architecture=solo.architecture.replace("torchvision/resnet50", "timm/resnet50"))
    assert not {"resnet50-imagenet", "timm/resnet50"} & set(fold.seen(alone).architecture)
