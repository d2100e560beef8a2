from __future__ import annotations

import pytest
import yaml

from profiling.errors import InputError
from profiling.yaml_files import read_yaml


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [("a: 1\nb: 2\na: 3\n", 3, "a"), ("x:\n- {a: 1, a: 2}\n", 2, "a"), ("x: {y: {'a': 1,\n  a: 2}}", 2, "a")],
)
def test_a_repeated_key_is_an_error_with_its_location(text: str, line: int, key: str) -> None:
    with pytest.raises(InputError, match=f"line {line}: key {key!r} is repeated"):
        read_yaml(text)


@pytest.mark.parametrize("text", ["[" * 10_000, "name: 2024-13-01", "count: " + "9" * 5000])
def test_yaml_that_python_cannot_read_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match=r"nested too deeply|a value cannot be read"):
        read_yaml(text)


def test_other_yaml_is_unaffected() -> None:
    text = "base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\nlist: [{x: 1}, {x: 2}]\n"
    assert read_yaml(text) == yaml.safe_load(text)
    assert read_yaml("") is None
    with pytest.raises(yaml.YAMLError):
        read_yaml("a: [")
    with pytest.raises(yaml.YAMLError):
        read_yaml("!!python/object/apply:os.getcwd []")
