"""Checks of the settings that the controllers of all schedulers have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from profiling.checked_fields import check_range
from profiling.devices import get_device


class Settings(Protocol):
    """Settings of a controller; `devices` are catalogue names by the scheduler's names."""

    @property
    def devices(self) -> Mapping[str, str]: ...


def check_settings(settings: Settings, *positive: str) -> None:
    """Raise `InputError` unless the fields named are positive, `UnknownNameError` for unknown devices."""
    check_range(settings, lambda value: value > 0, "a number above 0", *positive)
    for device in settings.devices.values():
        get_device(device)
