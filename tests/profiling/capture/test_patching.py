"""Attributes are replaced for a while."""

from types import SimpleNamespace

import pytest

from profiling.capture.patching import patched


def test_attributes_come_back_however_the_block_ends() -> None:
    owner = SimpleNamespace(one=1, two=2)
    with patched([(owner, "one", 10), (owner, "two", 20)]):
        assert (owner.one, owner.two) == (10, 20)
    assert (owner.one, owner.two) == (1, 2)
    with pytest.raises(KeyError), patched([(owner, "one", 10)]):
        raise KeyError
    assert owner.one == 1


def test_nothing_is_replaced_if_an_attribute_is_unknown() -> None:
    owner = SimpleNamespace(one=1)
    with pytest.raises(AttributeError), patched([(owner, "one", 10), (owner, "none", 20)]):
        pass
    assert owner.one == 1
