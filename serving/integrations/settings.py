"""Checks of the settings that the controllers of all schedulers have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from profiling.devices import get_device
from profiling.errors import InputError


class Settings(Protocol):
    """Settings of a controller; `devices` are catalogue names by the scheduler's names."""

    @property
    def devices(self) -> Mapping[str, str]: ...


def check_settings(settings: Settings, *positive: str) -> None:
    """Raise `InputError` unless the fields named are positive, `UnknownNameError` for unknown devices."""
    for name in positive:
        if not getattr(settings, name) > 0:
            raise InputError(f"{name} is out of range", expected="a number above 0", got=getattr(settings, name))  # fmt: skip
    for device in settings.devices.values():
        get_device(device)
