"""Catalogue names for the product titles that drivers, Slurm and Kubernetes give GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from profiling.devices import get_device, list_devices
from profiling.devices.discovery import match_catalogue, stated_memory
from profiling.errors import UnknownNameError


def device_of(title: str, devices: Mapping[str, str], memory_bytes: float | None = None) -> str:
    """The catalogue name of a product title such as `NVIDIA A100-SXM4-40GB`, `tesla-v100` or `AMD_Instinct_MI300X_OAM`.

    Args:
        devices: names given by the caller, with precedence over recognised ones.
        memory_bytes: memory of the GPU; if None, read from the title, else any that the title allows.

    Raises:
        UnknownNameError: no type, or several, have that title.
    """
    if title in devices:
        return get_device(devices[title]).name
    words = re.sub(r"[\s_-]+", " ", title.strip().lower())
    try:
        return get_device(words.removeprefix("amd instinct ").removesuffix(" oam").replace(" ", "-")).name
    except UnknownNameError:
        pass
    memory_bytes = memory_bytes or stated_memory(words)
    sizes = [memory_bytes] if memory_bytes else [spec.memory_bytes for spec in list_devices()]
    matches = {spec.name for size in sizes if (spec := match_catalogue(words, size)) is not None}
    if len(matches) == 1:
        return matches.pop()
    expected, got = "a product of the catalogue", None
    if matches:
        expected = "one of " + ", ".join(sorted(matches))
    elif memory_bytes and (
        others := [s for s in list_devices() if match_catalogue(words, s.memory_bytes) == s]
    ):
        # The catalogue lists that name, which without the memory reads as a contradiction.
        expected += " with " + ", ".join(f"{s.memory_bytes / 2**30:.0f} GiB ({s.name})" for s in others)
        got = f"{memory_bytes / 2**30:.1f} GiB"
    raise UnknownNameError(
        f"GPU type {title!r} is {'ambiguous' if matches else 'not recognised'}",
        expected=expected,
        got=got,
        hint=f"specify it with --device '{title}=CATALOGUE_NAME' (see `cotenant devices list`)",
    )
