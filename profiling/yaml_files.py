"""Strict YAML: a duplicate key in a mapping is an error, where PyYAML silently keeps the last value."""

from __future__ import annotations

from typing import Any

import yaml

from profiling.errors import InputError

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """`SafeLoader` without duplicate keys. A key may still override one merged by `<<`."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            line = key.start_mark.line + 1
            if key.value in lines:
                raise InputError(
                    f"line {line}: key {key.value!r} is repeated",
                    expected="each key once in a mapping",
                    got=f"it is also in line {lines[key.value]}",
                    hint="remove one, or write a list of both",
                )
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> Any:
    """Parse a text with one YAML document.

    Raises:
        InputError: a mapping has a duplicate key, a value is not of the type that it looks like (`2024-13-01`), or
            the text is nested too deeply.
        yaml.YAMLError: the text is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise InputError("nested too deeply", expected="YAML of ordinary depth") from None
    except ValueError as error:  # of int and datetime
        raise InputError("a value cannot be read", expected="quotes around text", got=str(error)) from None
