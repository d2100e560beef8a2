from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasets.bundle import Bundle, partners
from datasets.families import family_of
from datasets.splits import KINDS, Fold, make_split, save_split, select_sets
from datasets.tables import make_table
from profiling.errors import InputError, UnknownNameError
from tests.datasets.test_tables import example

NAMES = ["a-net", "b-net", "c-net", "d-net"]


def sets_of(*members: tuple[str, ...], **changes: object) -> pd.DataFrame:
    """One set for each tuple of `name@batch`."""
    rows = []
    for number, names in enumerate(members):
        for position, name in enumerate(names):
            model, _, batch = name.partition("@")
            rows.append(
                example(
                    "colocation",
                    set_id=f"s{number}",
                    member=position,
                    workload=f"{model}:batch_size={batch or 1}",
                    architecture=model,
                    batch_size=int(batch or 1),
                    device=["v100", "k80"][number % 2],
                    campaign=["x", "y"][number % 2],
                    source=["one", "two"][number % 2],
                )
                | changes
            )
    return make_table("colocation", rows)


TABLE = sets_of(
    ("a-net@1", "b-net@1"),
    ("b-net@8", "a-net@2"),
    ("a-net", "c-net"),
    ("b-net", "c-net"),
    ("c-net", "c-net"),
    ("a-net", "d-net"),
    ("d-net", "c-net"),
    ("b-net", "d-net", "a-net"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_set_is_tested_and_never_on_both_sides(kind: str) -> None:
    folds = make_split(TABLE, kind, folds=4)
    assert set().union(*(f.test_set_ids for f in folds)) == set(TABLE["set_id"])
    for fold in folds:
        assert set(fold.train_set_ids) | set(fold.test_set_ids) == set(TABLE["set_id"])
        assert not set(fold.train_set_ids) & set(fold.test_set_ids)


def test_by_model_excludes_the_model_from_training() -> None:
    folds = make_split(TABLE, "by-model")
    assert [fold.name for fold in folds] == NAMES
    for fold in folds:
        assert fold.name not in set(select_sets(TABLE, fold.train_set_ids)["architecture"])
        for _, rows in select_sets(TABLE, fold.test_set_ids).groupby("set_id"):
            assert fold.name in set(rows["architecture"])


def test_by_pair_keeps_both_directions_and_all_batch_sizes_together() -> None:
    for seed in range(5):
        side = {s: f.name for f in make_split(TABLE, "by-pair", seed, folds=3) for s in f.test_set_ids}
        assert side["s0"] == side["s1"]


def test_splits_are_seeded_and_independent_of_row_order() -> None:
    shuffled = TABLE.sample(frac=1, random_state=3)
    assert make_split(TABLE, "random", 1) == make_split(shuffled, "random", 1)
    assert make_split(TABLE, "random", 1) != make_split(TABLE, "random", 2)


def test_a_split_file_describes_its_data(tmp_path: Path) -> None:
    folds = make_split(TABLE, "by-pair", 7, folds=2)
    body = json.loads(save_split(tmp_path / "split.json", folds, seed=7).read_text())
    assert body["seed"] == 7
    assert [Fold(f["name"], tuple(f["train"]), tuple(f["test"])) for f in body["folds"]] == folds


def test_errors() -> None:
    with pytest.raises(UnknownNameError, match="by-pair"):
        make_split(TABLE, "by-moon")
    with pytest.raises(InputError, match="at least as many groups"):
        make_split(TABLE, "random", folds=99)
    with pytest.raises(InputError, match="two values"):
        make_split(TABLE[TABLE["device"] == "k80"], "by-device")
    with pytest.raises(InputError, match="every set is held out"):
        make_split(sets_of(("a-net", "b-net"), ("b-net", "a-net")), "by-model", skip_empty=True)
    everywhere = sets_of(("a-net", "b-net"), ("a-net", "c-net"))
    with pytest.raises(InputError, match="every set is held out with a-net"):
        make_split(everywhere, "by-model")
    with pytest.warns(UserWarning, match="a-net is in every set"):
        folds = make_split(everywhere, "by-model", skip_empty=True)
    assert [fold.name for fold in folds] == ["b-net", "c-net"]
    with pytest.raises(InputError, match="both sides"):
        Fold("x", ("s1",), ("s1",))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(NAMES), min_size=2, max_size=3).map(tuple), min_size=6, max_size=20),
    st.integers(0, 5),
)
def test_any_table_splits_without_leaking_a_pair(members: list[tuple[str, ...]], seed: int) -> None:
    table = sets_of(*members)
    groups = len({tuple(sorted(m)) for m in members})
    if groups < 2:
        return
    for fold in make_split(table, "by-pair", seed, folds=2):
        sides = [
            {tuple(sorted(rows["architecture"])) for _, rows in select_sets(table, ids).groupby("set_id")}
            for ids in (fold.train_set_ids, fold.test_set_ids)
        ]
        assert not sides[0] & sides[1]


def test_test_inputs_contain_nothing_measured_under_co_location() -> None:
    bundle = Bundle("throughput_ratio", TABLE, make_table("solo", [example("solo")]))
    assert bundle.points.all()
    hidden = bundle.without_targets()
    measured = [
        "throughput_ratio",
        "step_time_s",
        "set_memory_bytes",
        "set_utilization_ratio",
        "set_memory_bandwidth_ratio",
    ]
    assert hidden.colocation[measured].isna().all().all()
    assert not hidden.points.any()
    assert len(hidden.rows) == len(bundle.rows)
    assert len(bundle.without_solo().solo) == 0


def test_bounds_and_hard_coded_rows_are_not_points() -> None:
    table = TABLE.assign(censored=TABLE["member"] == 0, is_target=TABLE["set_id"] != "s0")
    bundle = Bundle("throughput_ratio", table, make_table("solo", []))
    assert bundle.points.sum() == ((table["member"] > 0) & (table["set_id"] != "s0")).sum()


def test_set_targets_have_one_row_for_each_set() -> None:
    bundle = Bundle("set_memory_bytes", TABLE, make_table("solo", []))
    assert len(bundle.y) == TABLE["set_id"].nunique()


def test_partners() -> None:
    others = partners(TABLE.reset_index(drop=True))
    assert [list(o) for o in others[-3:]] == [[15, 16], [14, 16], [14, 15]]


def test_whole_families_are_held_out_for_any_unit() -> None:
    names = [
        "timm/resnet18",
        "timm-0.6/resnet50",
        "torchvision/tv_resnet34",
        "timm/vit_tiny",
        "timm/deit_tiny",
        "timm/vgg16",
    ]
    rows = pd.DataFrame({"architecture": names}).assign(family=[family_of(name) for name in names])
    folds = make_split(rows, "by-family", folds=3, unit="family")
    assert sorted(unit for fold in folds for unit in fold.test_set_ids) == ["resnet", "vgg", "vit"]
    assert make_split(rows, "by-family", folds=3, unit="architecture") != folds
    for fold in make_split(rows, "by-family", folds=3, unit="architecture"):
        sides = [{family_of(name) for name in side} for side in (fold.train_set_ids, fold.test_set_ids)]
        assert not sides[0] & sides[1]
    cells = pd.DataFrame({"architecture": [f"nasbench/{number}" for number in range(50)]})
    folds = make_split(cells, "by-cell", unit="architecture")
    assert [len(fold.test_set_ids) for fold in folds] == [10] * 5


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("timm/resnet50.a1_in1k", "resnet"),
        ("timm-0.6/tf_efficientnetv2_s", "efficientnet"),
        ("timm/beitv2_base_patch16_224", "beit"),
        ("mobilenetv3small-imagenet", "mobilenet"),
        ("timm/ens_adv_inception_resnet_v2", "inception"),
        ("timm/wide_resnet50_2", "resnet"),
        ("timm/deit_base_distilled_patch16_224", "vit"),
        ("resnet18-cifar", "resnet"),
        ("nasbench/ab1c", "ab1c"),
        ("hf/bert-large", "bert"),
        ("nets:mixer", "nets:mixer"),
    ],
)
def test_families(name: str, family: str) -> None:
    assert family_of(name) == family
