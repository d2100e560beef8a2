"""Configuration of a training from a YAML file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from models.colocation_network import NetworkConfig
from models.workload_encoder import EncoderConfig
from predictor.config import TrainingConfig, read_config
from profiling.errors import InputError, one_line
from profiling.names import one_of


def load_config(path: Path | None, seed: int | None = None) -> tuple[NetworkConfig, TrainingConfig]:
    """Read `network:` and `training:` from a YAML file; defaults without one.

    Args:
        path: the file.
        seed: overrides the file's.

    Raises:
        InputError: the file is not YAML, a key or value is unknown, or the network is for ablation only.
    """
    body = read_config(path)
    _check_keys(body, path)
    try:
        network = dict(body.get("network") or {})
        encoder = EncoderConfig(**(network.pop("encoder", None) or {}))
        given = {} if seed is None else {"seed": seed}
        training = TrainingConfig(**{**(body.get("training") or {}), **given})
        config = NetworkConfig(**network, encoder=encoder)
    except (TypeError, AttributeError) as error:
        raise InputError(
            f"configuration {path}",
            expected="YAML with network: and training:",
            got=one_line(error),
        ) from None
    config.check_whole()
    return config, training


def _check_keys(body: dict[str, Any], config: Path | None) -> None:
    """Check the keys of a configuration.

    Raises:
        InputError: a key is unknown; the hint names similar ones.
    """
    network = body.get("network")
    encoder = network.get("encoder") if isinstance(network, dict) else None
    sections = (
        ("", body, ("network", "training")),
        ("network.", network, [field.name for field in fields(NetworkConfig)]),
        ("network.encoder.", encoder, [field.name for field in fields(EncoderConfig)]),
        ("training.", body.get("training"), [field.name for field in fields(TrainingConfig)]),
    )
    for section, values, known in sections:
        if values is not None and not isinstance(values, dict):
            raise InputError(
                f"configuration {config}: {section.rstrip('.')} is not a mapping",
                expected="keys and values",
                got=repr(values)[:80],
            )
        for key in values or {}:
            if key not in known:
                raise InputError(
                    f"configuration {config}: unknown key {section}{key}", expected=one_of(str(key), known)
                )
