"""Names and defaults of the zoo, read from `listing.json` without importing torch or any model.

`python -m profiling.zoo` regenerates that file from the families' entries.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from profiling.errors import InputError, UnknownNameError
from profiling.files import read_json
from profiling.importing import module_at
from profiling.names import near_names
from profiling.workload import Workload
from profiling.zoo.aliases import ALIASES
from profiling.zoo.entry import ZooEntry, ZooModel

LISTING = Path(__file__).with_name("listing.json")
_FIELDS = tuple(f.name for f in fields(ZooModel))


@lru_cache(maxsize=1)
def _models() -> dict[str, ZooModel]:
    return {row["name"]: ZooModel(**row) for row in read_json(LISTING)}


def listed(entry: ZooEntry) -> dict[str, Any]:
    """The row of an entry in `listing.json`."""
    return {name: getattr(entry, name) for name in _FIELDS}


def zoo_names() -> list[str]:
    """All names, family by family."""
    return list(_models())


def near_models(name: str) -> list[str]:
    """At most three models with names similar to `name`; see `profiling.names`."""
    return near_names(name, _models())


def is_model(name: str) -> bool:
    """Whether the zoo has a model with that name or alias."""
    return _found(name) is not None


def _found(name: str) -> ZooModel | None:
    models = _models()
    return models.get(name) or models.get(ALIASES.get(name, "")) or models.get(ALIASES.get(name.lower(), ""))


def get_model(name: str) -> ZooModel:
    """The model with that name or alias (see `profiling.zoo.aliases`).

    Raises:
        UnknownNameError: there is none; the message lists similar names.
    """
    model = _found(name)
    if model is None:
        if ":" in name or name.endswith((".onnx", ".json", ".graph.txt")):
            raise UnknownNameError(
                f"{name!r} is code or a file, which only a command's --job and `cotenant data validate` read",
                expected="a model of the zoo, or `graph:HASH` of a captured one",
                hint=f"it is captured already: write --job {name}"
                if name.endswith(".json")
                else "capture it first: cotenant capture --help",
            )
        near = near_models(name)
        hint = "`cotenant zoo list` shows all; for your own model use module:factory, FILE.onnx or a captured graph.json"
        if name.endswith(".py"):
            hint = f"name the function in it that makes the model, too: {module_at(name)}:FACTORY"
        raise UnknownNameError(
            f"model {name!r} is not in the zoo",
            expected="a name such as " + ", ".join(near) if near else None,
            hint=hint,
        )
    return model


def resolve(workload: Workload) -> Workload:
    """The same zoo workload with explicit defaults, under which its graph is cached.

    Raises:
        UnknownNameError: the model is not in the zoo.
        InputError: a sequence length for a model without sequences or beyond its positions, or an image size.
    """
    model = get_model(workload.model)
    if workload.sequence_length is not None and model.sequence_length is None:
        raise InputError(f"{model.name} has no sequence length", got=workload.sequence_length)
    if model.longest_sequence and (workload.sequence_length or 0) > model.longest_sequence:
        raise InputError(
            f"{model.name} has no positions for this sequence_length",
            expected=f"at most {model.longest_sequence}",
            got=workload.sequence_length,
        )
    if workload.image_size is not None:
        raise InputError(f"{model.name} has a fixed image size", got=workload.image_size)
    return replace(
        workload,
        model=model.name,
        batch_size=workload.batch_size or model.batch_size,
        sequence_length=workload.sequence_length or model.sequence_length,
        optimizer=workload.optimizer or model.optimizer,
    )
