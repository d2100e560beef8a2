from __future__ import annotations

from collections import Counter

import pytest

from profiling.devices import (
    get_device,
    has_mig,
    list_devices,
    mig_layout,
    runs_on,
    split_device,
)
from profiling.errors import InputError, UnknownNameError

CARDS = [
    "a100", "a100-pcie", "a100-80gb", "a100-pcie-80gb", "a30", "gh200", "h100", "h100-nvl", "h100-pcie", "h200",
    "rtx-pro-6000", "rtx-pro-6000-max-q",
]  # fmt: skip


def sizes(names: list[str]) -> set[tuple[int, ...]]:
    """Partitions by compute slices, without those that contain a slice with extra memory."""
    layout = mig_layout(names[0])
    return {
        tuple(p.compute_slices for p in partition.profiles)
        for partition in layout.partitions
        if all(p.short == f"{p.compute_slices}g" for p in partition.profiles)
    }


@pytest.mark.parametrize("card", CARDS)
def test_slices_follow_from_their_card(card: str) -> None:
    layout, whole = mig_layout(card), get_device(card)
    assert len(layout.source) > 30
    for profile in layout.profiles:
        part = get_device(layout.device(profile))
        assert part.name == f"{card}:mig={profile.short}"
        assert part.sm_count == profile.sm_count <= whole.sm_count
        of_compute, of_memory = profile.sm_count / whole.sm_count, profile.memory_slices / layout.slots
        for precision in ("fp32", "tf32", "amp", "fp64"):
            assert part.peak_flops(precision) == pytest.approx(of_compute * whole.peak_flops(precision))
        assert part.memory_bandwidth_bytes_per_s == of_memory * whole.memory_bandwidth_bytes_per_s
        assert part.l2_bytes == of_memory * whole.l2_bytes
        assert part.power_limit_w == of_compute * whole.power_limit_w
        # The driver keeps some of each slice.
        assert 0.87 * of_memory < part.memory_bytes / whole.memory_bytes < of_memory
        assert (part.nvlink_bytes_per_s, part.mig_profiles) == (0.0, ())
        assert part.pcie_bytes_per_s == whole.pcie_bytes_per_s
        assert get_device(f"{card}:mig={profile.name}") == part
    assert {p.name for p in layout.profiles} == set(whole.mig_profiles)


@pytest.mark.parametrize("card", CARDS)
def test_every_partition_is_one_the_vendor_allows(card: str) -> None:
    layout = mig_layout(card)
    for partition in layout.partitions:
        taken: list[int] = []
        for start, profile in partition.placements:
            assert start in profile.starts
            taken.extend(range(start, start + profile.memory_slices))
        assert len(set(taken)) == len(taken)
        assert max(taken) < layout.slots
        assert sum(p.compute_slices for p in partition.profiles) <= layout.compute_slices
    assert len({p.profiles for p in layout.partitions}) == len(layout.partitions)


def test_partitions_of_an_a100() -> None:
    known = sizes(["a100"])
    # From the diagrams of the MIG User Guide.
    for partition in [
        (7,),
        (4, 3),
        (4, 2, 1),
        (4, 1, 1, 1),
        (3, 3),
        (3, 2, 2),
        (3, 2, 1, 1),
        (3, 1, 1, 1, 1),
        (2, 2, 2, 1),
        (1,) * 7,
    ]:
        assert partition in known
    for absent in [(4, 4), (3, 3, 1), (5, 2), (4, 3, 1), (3, 2, 2, 1), (2, 2, 2, 2), (6,), (1,) * 8]:
        assert absent not in known
    assert [str(p) for p in mig_layout("a100").maximal][:4] == ["7g", "4g+3g", "4g+2g+1g.10gb", "3g+2g+2g"]
    assert sizes(["a30"]) == {(4,), (2,), (1,), (2, 2), (2, 1), (1, 1), (2, 1, 1), (1, 1, 1), (1, 1, 1, 1)}


def test_slices_of_an_h100_depend_on_its_form_factor() -> None:
    counts = {
        card: [p.sm_count for p in mig_layout(card).profiles]
        for card in ("h100", "h100-pcie", "rtx-pro-6000")
    }
    assert counts == {
        "h100": [16, 26, 32, 60, 64, 132],
        "h100-pcie": [14, 14, 30, 46, 62, 114],
        "rtx-pro-6000": [46, 94, 188],
    }
    assert sizes(["h100-pcie"]) == sizes(["h100"])
    assert sizes(["rtx-pro-6000"]) == sizes(["a30"])


def test_slices_with_more_memory_take_two_slots() -> None:
    layout = mig_layout("a100")
    assert layout.place(["1g.10gb"] * 4) is not None
    assert layout.place(["1g.10gb"] * 5) is None
    assert layout.place(["1g.10gb", *["1g"] * 6]) is not None
    assert layout.place(["4g", "3g"]) is not None
    assert layout.place(["3g", "3g", "1g"]) is None
    three_and_twos = layout.place(["2g", "3g", "2g"])
    assert three_and_twos is not None
    assert [(start, p.short) for start, p in three_and_twos.placements] == [(0, "2g"), (2, "2g"), (4, "3g")]


def test_partitions_that_can_be_best_for_few_jobs() -> None:
    layout = mig_layout("a100")
    assert [str(p) for p in layout.useful(1)] == ["7g"]
    assert [str(p) for p in layout.useful(2)] == ["7g", "4g+3g"]
    assert [str(p) for p in layout.useful(3)] == ["7g", "4g+3g", "4g+2g+1g.10gb", "3g+2g+2g"]
    assert layout.useful(7) == layout.maximal


def test_every_partition_is_contained_in_a_maximal_one() -> None:
    layout = mig_layout("a100")
    for partition in layout.partitions:
        wanted = Counter(p.compute_slices for p in partition.profiles)
        assert any(
            sum(q.compute_slices for q in larger.profiles) >= sum(k * n for k, n in wanted.items())
            for larger in layout.maximal
            if len(larger.profiles) >= len(partition.profiles)
        )


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("A100-40GB:mig=3g", "a100:mig=3g"),
        ("a100:mig=3g.20gb", "a100:mig=3g"),
        ("a100:mig=1g.5gb+me", "a100:mig=1g"),
        ("a100:mig=1g.10gb", "a100:mig=1g.10gb"),
        ("a100-80gb:mig=1g.10gb", "a100-80gb:mig=1g"),
        ("h100:mig=1g", "h100:mig=1g"),
        ("h200:mig=7g", "h200:mig=7g"),
        ("h100-nvl:mig=3g.47gb", "h100-nvl:mig=3g"),
        ("h100-pcie:mig=2g.20gb", "h100-pcie:mig=2g"),
        ("rtx-pro-6000-max-q:mig=2g.48gb", "rtx-pro-6000-max-q:mig=2g"),
        ("gh200-96gb:mig=1g.24gb", "gh200:mig=1g.24gb"),
        ("a100-40gb", "a100"),
    ],
)
def test_names_of_slices(name: str, canonical: str) -> None:
    assert get_device(name).name == canonical
    assert runs_on(name, "bf16")
    assert not runs_on("a100:mig=3g", "fp8")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("a100:mig=5g", UnknownNameError, "no MIG slice '5g'.*1g, 1g.10gb, 2g, 3g, 4g, 7g"),
        ("v100:mig=1g", UnknownNameError, "unknown MIG slices of v100.*a100"),
        ("a100:mps=3g", InputError, "unknown option.*a100:mig=3g"),
        ("a100:mig=", InputError, "unknown option"),
        ("a1000:mig=3g", UnknownNameError, "'a1000' is not in the catalogue.*a100"),
    ],
)
def test_names_that_are_not_slices(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        get_device(name)


def test_split_and_listing() -> None:
    assert split_device("a100:mig=3g") == ("a100", "3g")
    assert split_device("a100") == ("a100", None)
    assert not any(":" in spec.name for spec in list_devices())
    assert has_mig("a30")
    assert not has_mig("t4")
    assert not has_mig("gh200-144gb")
