"""The catalogue of device types, and user-defined types from YAML files."""

from __future__ import annotations

import logging
import os
import tomllib
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from profiling.devices.compute_capability import RESIDENCY, compute_capabilities
from profiling.devices.mig import has_mig, mig_layout, slice_of, split_device
from profiling.devices.spec import DeviceSpec
from profiling.errors import InputError, UnavailableError, UnknownNameError
from profiling.names import one_of

ENVIRONMENT = "COTENANT_DEVICES"
"""Environment variable with YAML files of additional device types, separated like PATH."""

_LOGGER = logging.getLogger("cotenant.devices")
_last_read: dict[str, list[DeviceSpec]] = {}

_FIELDS = {f.name: f for f in fields(DeviceSpec) if f.name != "name"}
_TEXT = {"vendor", "architecture", "compute_capability", "memory_type", "source"}
_INTEGERS = {"sm_count", "memory_bus_bits", *RESIDENCY}
_PCIE_BYTES_PER_S = 15.75e9  # PCIe 3.0 x16
_ALIASES = {
    "a100-40gb": "a100",
    "gh200-96gb": "gh200",
    "h100-80gb": "h100",
    "h200-141gb": "h200",
    "v100-16gb": "v100",
}
_FILES = (
    "nvidia_kepler_and_pascal",
    "nvidia_volta_and_turing",
    "nvidia_ampere",
    "nvidia_ada",
    "nvidia_hopper",
    "nvidia_blackwell",
    "amd",
    "processors",
)


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, DeviceSpec]:
    known = {}
    for file in _FILES:
        path = Path(__file__).parent / "types" / f"{file}.toml"
        with path.open("rb") as stream:
            rows = tomllib.load(stream)
        known.update({name: device_from_mapping(name, row, path) for name, row in rows.items()})
    return known


def list_devices() -> list[DeviceSpec]:
    """All known device types: the catalogue, then those in the files in `COTENANT_DEVICES`."""
    return list(_known().values())


def _known() -> dict[str, DeviceSpec]:
    """All known device types by name."""
    return _with_files(_files())


def _files() -> tuple[tuple[str, object], ...]:
    """The files in `COTENANT_DEVICES`, each with a value that changes with it."""
    paths = os.environ.get(ENVIRONMENT)
    return tuple((path, _stamp(path)) for path in paths.split(os.pathsep) if path) if paths else ()


@lru_cache(maxsize=8)
def _with_files(files: tuple[tuple[str, object], ...]) -> dict[str, DeviceSpec]:
    """The catalogue and the types in `files`, cached until a file changes, because services query them often."""
    if not files:
        return _catalogue()
    known = dict(_catalogue())
    for path, _ in files:
        known.update({spec.name: spec for spec in _types_in(path)})
    return known


def _types_in(path: str) -> list[DeviceSpec]:
    """The types in a file of `COTENANT_DEVICES`; those last read if it has since become missing or invalid.

    Otherwise a mistake in the file would fail every request to a running service, whatever the device.

    Raises:
        InputError: the file is invalid, and was never read before.
    """
    try:
        _last_read[path] = load_device_file(path)
    except InputError as error:
        if path not in _last_read:
            raise
        _LOGGER.warning("keeping the device types read earlier: %s", error.message)
    return _last_read[path]


def _stamp(path: str) -> tuple[int, int, int] | None:
    """A value that changes with the file; None if it does not exist."""
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


def device_names() -> list[str]:
    """Names of all known types, each card followed by its MIG slices (`a100`, `a100:mig=1g`, ...)."""
    names: list[str] = []
    for spec in list_devices():
        names += (spec.name, *(mig_layout(spec.name).devices if has_mig(spec.name) else ()))
    return names


def get_device(name: str) -> DeviceSpec:
    """The device type of that catalogue name, or a MIG slice of one: `a100`, `a100:mig=3g`, `a100:mig=3g.20gb`.

    Raises:
        UnknownNameError: no such type or slice; the message names the nearest ones.
        InputError: what follows the colon is not a slice.
    """
    return _found(name, _files())


@lru_cache(maxsize=1024)
def _found(name: str, files: tuple[tuple[str, object], ...]) -> DeviceSpec:
    return _named(name, _with_files(files))


def spelt(name: str) -> str:
    """The catalogue's spelling of a device name: `rtx-3090` for `RTX 3090` and `rtx_3090`."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _named(name: str, known: dict[str, DeviceSpec]) -> DeviceSpec:
    card, part = split_device(spelt(name))
    if card not in known:
        card = _ALIASES.get(card, card)
    if card in known:
        return known[card] if part is None else slice_of(known[card], part)
    raise UnknownNameError(
        f"device {card!r} is not in the catalogue",
        expected=one_of(card, sorted(known)),
        hint=f"`cotenant devices list` shows all; add your own with a YAML file named in {ENVIRONMENT}",
    )


def canonical(name: str) -> str:
    """The listed name of a known device type (`v100` for `V100` and `v100-16gb`); an unknown name as it is."""
    if name in _catalogue():  # nearly always, and every co-location set asks
        return name
    return _canonical(name, _files())


@lru_cache(maxsize=1024)
def _canonical(name: str, files: tuple[tuple[str, object], ...]) -> str:
    try:
        known, card = _with_files(files), split_device(spelt(name))[0]
        return _found(name, files).name if card in _ALIASES or card in known else name
    except InputError:
        return name


def is_known(name: str) -> bool:
    """Whether `get_device` knows a device type of that name."""
    try:
        get_device(name)
    except UnknownNameError:
        return False
    return True


def runs_on(name: str, precision: str) -> bool:
    """Whether the device type of that name supports `precision`; True for an unknown type."""
    try:
        return get_device(name).supports(precision)
    except UnknownNameError:
        return True


def load_device_file(path: Path | str) -> list[DeviceSpec]:
    """Read device types from YAML: `{name: {field of DeviceSpec: value, ...}, ...}`.

    `sm_count`, `clock_hz`, `fp32_flops`, `memory_bytes` and `memory_bandwidth_bytes_per_s` are required. The defaults
    of the others are 0 or empty; `vendor` defaults to `custom`, `pcie_bytes_per_s` to PCIe 3.0 x16. A known
    `compute_capability` supplies what all its GPUs have in common: residency limits, and FP64, FP16 and BF16 rates
    on CUDA cores.

    Raises:
        InputError: no such file, not YAML, a field is unknown, missing or of the wrong type, or a name occurs twice.
        UnavailableError: PyYAML is not installed.
    """
    try:
        import yaml

        from profiling.yaml_files import read_yaml
    except ImportError:
        raise UnavailableError(
            "reading a device file needs PyYAML", hint="pip install pyyaml, or use the catalogue"
        ) from None
    source = Path(path)
    try:
        body = read_yaml(source.read_text(encoding="utf-8"))
    except InputError as error:
        raise error.at(source) from None
    except OSError as error:
        raise InputError(f"device file {source} cannot be read", got=str(error.strerror)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"device file {source} is not YAML", got=str(error)) from None
    if not isinstance(body, dict) or not all(isinstance(row, dict) for row in body.values()):
        raise InputError(
            f"device file {source} has an unexpected structure",
            expected="name: {sm_count: ..., clock_hz: ..., ...}",
            got=type(body).__name__,
        )
    specs: dict[str, DeviceSpec] = {}
    for name, row in body.items():
        spec = device_from_mapping(str(name), row, source)
        if spec.name in specs:
            raise InputError(
                f"device file {source} has {spec.name!r} twice",
                expected="each name once, ignoring case, spaces and underscores",
                got=repr(name),
            )
        specs[spec.name] = spec
    return list(specs.values())


def device_from_mapping(name: str, row: dict[str, Any], where: object = "") -> DeviceSpec:
    """Build a device type from plain values.

    Raises:
        InputError: a field is unknown, missing or of the wrong type, or the name is empty or has a colon.
    """
    if not name.strip() or ":" in name:
        raise InputError(
            f"device {name!r} in {where} cannot be requested",
            expected="a name without a colon, which separates MIG slices",
        )
    unknown = sorted(set(map(str, row)) - set(_FIELDS))
    if unknown:
        raise InputError(
            f"device {name!r} in {where} has an unknown field",
            expected="fields " + ", ".join(_FIELDS),
            got=unknown[0],
        )
    values: dict[str, Any] = {"vendor": "custom", "source": str(where)}
    for key, field in _FIELDS.items():
        if key in row:
            values[key] = _value(name, key, row[key], where)
        elif key in _TEXT:
            values.setdefault(key, "")
        elif field.default is MISSING:
            values[key] = 0
    values["pcie_bytes_per_s"] = values["pcie_bytes_per_s"] or _PCIE_BYTES_PER_S
    _fill_in(values)
    return DeviceSpec(name=spelt(name), **values)


def _fill_in(values: dict[str, Any]) -> None:
    """Fill in missing fields from the compute capability, in place."""
    known = compute_capabilities().get(values["compute_capability"])
    if known is None:
        return
    for key in RESIDENCY:
        values[key] = values.get(key) or getattr(known, key)
    for kind in ("fp64", "fp16", "bf16"):
        per_clock = getattr(known, f"{kind}_per_clock")
        rate = 2.0 * per_clock * values["sm_count"] * values["clock_hz"]
        values[f"{kind}_cuda_flops"] = values.get(f"{kind}_cuda_flops") or rate
    values["fp64_flops"] = values.get("fp64_flops") or values["fp64_cuda_flops"]


def _value(name: str, key: str, value: Any, where: object) -> Any:
    if key in _TEXT:
        return str(value)
    if key == "mig_profiles":
        if isinstance(value, list | tuple):
            return tuple(str(item) for item in value)
    elif not isinstance(value, bool):
        # YAML 1.1 reads 35.6e12 as text, because it requires a sign in the exponent.
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if 0 <= number < float("inf"):
            return int(number) if key in _INTEGERS else number
    raise InputError(
        f"device {name!r} in {where}: {key} has the wrong type",
        expected="a list" if key == "mig_profiles" else "a number from 0",
        got=repr(value),
    )
