"""Sets found by the order of their jobs' memory, compared with a search over all assignments."""

from __future__ import annotations

from itertools import combinations, permutations
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from models.cost.order import LOAD_WIDTH, load_of, memory_load
from predictor.gaussian_process.known_members import MEMBER_LOAD
from predictor.learning.memory.sets_by_memory import SetsByMemory
from profiling.workload import Workload


def members_like(chance: np.random.Generator, count: int, further: bool = False) -> Any:
    """Members of three networks on one device, which differ in batch size, and in passes if there are `further` options."""
    load = np.zeros((count, MEMBER_LOAD))
    load[:, 0] = chance.integers(1, 5, count)
    load[:, 1] = chance.integers(1, 3, count) if further else 1.0
    network = chance.integers(0, 3, count)
    return SimpleNamespace(
        network=network, load=load, devices=lambda numbers: np.zeros(len(numbers), np.int64)
    )


def sets_of(chance: np.random.Generator, count: int, members: int) -> Any:
    numbers = chance.integers(0, members, (count, 3))
    numbers[chance.random(count) < 0.3, 2] = -1
    return numbers


@pytest.mark.parametrize("least", [False, True])
def test_all_that_can_be_compared_are_found(least: bool) -> None:
    chance = np.random.default_rng(5)
    known = members_like(chance, 40)
    reported, asked = sets_of(chance, 60, 40), sets_of(chance, 200, 40)

    def is_enough(one: Any, other: Any) -> bool:
        one, other = one[one >= 0], other[other >= 0]
        sign = -1 if least else 1
        return len(one) == len(other) and any(
            all(
                known.network[a] == known.network[b] and sign * (known.load[a, 0] - known.load[b, 0]) >= 0
                for a, b in zip(one, order, strict=True)
            )
            for order in permutations(other)
        )

    found = SetsByMemory(cast(Any, known), reported, least=least).first(asked, known.devices(asked))
    expected = [any(is_enough(one, other) for one in reported) for other in asked]
    assert [int(place) < len(reported) for place in found] == expected
    assert 20 < sum(expected) < 180
    assert all(is_enough(reported[k], asked[row]) for row, k in enumerate(found) if k < len(reported))


@pytest.mark.parametrize("least", [False, True])
def test_a_set_contains_another_if_one_of_its_parts_is_found(least: bool) -> None:
    chance = np.random.default_rng(6)
    known = members_like(chance, 40, further=True)
    reported, asked = sets_of(chance, 30, 40), chance.integers(-1, 40, (60, 5))
    asked[:, 0] = np.abs(asked[:, 0])
    count = 0
    for one in reported:
        sets = SetsByMemory(cast(Any, known), one[None], least=least)
        size = int((one >= 0).sum())
        parts = [asked[:, columns] for columns in map(list, combinations(range(5), size))]
        expected = np.any([sets.first(part, known.devices(part)) == 0 for part in parts], axis=0)
        assert sets.are_in(asked, known.devices(asked), 0).tolist() == expected.tolist()
        assert not sets.are_in(asked, known.devices(asked) + 1, 0).any()
        count += expected.sum()
    assert 100 < count < 1700


def test_none_of_none() -> None:
    known = members_like(np.random.default_rng(0), 4)
    nothing = SetsByMemory(cast(Any, known), np.zeros((0, 2), np.int64))
    asked = np.array([[0, 1], [2, -1]])
    assert nothing.first(asked, known.devices(asked)).tolist() == [0, 0]
    some = SetsByMemory(cast(Any, known), asked)
    assert some.first(np.zeros((0, 2), np.int64), np.zeros(0, np.int64)).tolist() == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 64}, 1),
        ({"gradient_accumulation": 2}, 1),
        ({"frozen_prefix": 1}, -1),
        ({"sm_share_ratio": 0.5}, 0),
        ({"data_on_device": True}, 1),
        ({"mode": "inference"}, -1),
    ],
)
def test_what_takes_more_memory(options: dict[str, Any], expected: int) -> None:
    one, other = (
        memory_load(np.array(load_of(Workload(**{"model": "bert", "batch_size": 32, **more}))))
        for more in ({}, options)
    )
    assert len(one) == LOAD_WIDTH
    assert np.sign(other - one).sum() == expected


def test_checkpointing_takes_neither_more_nor_less() -> None:
    one, other = (
        memory_load(np.array(load_of(Workload("bert", 32, activation_checkpointing=checkpointing))))
        for checkpointing in (False, True)
    )
    assert not (one <= other).all()
    assert not (other <= one).all()
