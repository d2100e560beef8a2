"""Nodes from `sinfo` or `scontrol show nodes`, as text or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from profiling.devices import get_device, has_mig, list_devices, mig_layout
from profiling.devices.discovery import match_catalogue
from profiling.devices.mig import VARIANT, MigLayout, MigProfile
from profiling.errors import InputError, UnknownNameError
from profiling.files import parse_json
from scheduling.clusters.importers.titles import device_of
from scheduling.core.limits import CLUSTER_GPUS
from scheduling.core.snapshot import Gpu, Node, check_counts

# Host lists of Slurm: parts between commas, and the ranges in their brackets.
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*(?:\]|$))+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
# One part of a Gres: `name[:type][:no_consume][:count]`.
_GRES = re.compile(
    r"(?P<name>[^:]+)(?::(?!no_consume(?::|$)|[0-9]+[KMGTP]?$)(?P<type>[^:]+))?(?::no_consume)?"
    r"(?::(?P<count>[0-9]{1,15})(?P<unit>[KMGTP]?))?",
    re.IGNORECASE,
)
_UNITS = "KMGTP"  # in powers of 1024
_MIG_TYPE = re.compile(
    rf"(?:(?P<card>.+?)_)?(?P<profile>(?P<slices>\d+)g\.(?P<gib>\d+)gb){VARIANT}", re.IGNORECASE
)
UNTYPED = "gpu"
"""Name for `--device` of the type of GPUs that have none in `Gres`."""
_ANY_MIG_TYPE = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)


def read(text: str, devices: Mapping[str, str], _node: str) -> list[Node]:
    """Nodes with GPUs in their `Gres`, in the order of the text; each once, even if it is in several
    partitions."""
    rows = _json_nodes(text) if text.lstrip().startswith("{") else _text_nodes(text)
    nodes, total = [], 0
    for name, (gres, features) in {row[0]: row[1:] for row in rows}.items():
        try:
            kinds, _ = gpus_of(gres)
        except InputError as error:
            raise error.at(f"node {name}") from None
        total += len(kinds)
        check_counts({"GPUs": total}, CLUSTER_GPUS)
        untyped = type_by_features(features, devices)
        if "" in kinds and not untyped:
            raise InputError(
                f"node {name}: Gres names no GPU type",
                expected="gpu:TYPE:COUNT in gres.conf, or one feature that names the type (%f of sinfo)",
                got=", ".join([gres, *(f"feature {name}" for name in features)]),
                hint=f"specify the type of GPUs without one with --device {UNTYPED}=CATALOGUE_NAME, or what a feature "
                "of their nodes stands for with --device FEATURE=CATALOGUE_NAME",
            )
        if kinds:
            gpus = [Gpu(str(k), device_of_type(kind or untyped, devices)) for k, kind in enumerate(kinds)]
            nodes.append(Node(name, tuple(gpus)))
    return nodes


def features_of(value: object) -> tuple[str, ...]:
    """Features of a node, as a list or with commas between them.

    >>> features_of("a100,ib"), features_of(["a100", "ib"]), features_of("(null)")
    (('a100', 'ib'), ('a100', 'ib'), ())
    """
    names = value if isinstance(value, list) else str(value or "").split(",")
    return tuple(str(name) for name in names if name and name != "(null)")


def type_by_features(features: Sequence[str], devices: Mapping[str, str]) -> str:
    """The type of GPUs that have none in their node's `Gres`; empty if unknown.

    A feature that `devices` names, else `gpu` if that does, else the only feature that is a GPU type.
    """
    named = [name for name in features if name in devices]
    if named or UNTYPED in devices:
        return (named or [UNTYPED])[0]
    recognised = {device: name for name in features if (device := _gpu_named(name))}
    return next(iter(recognised.values())) if len(recognised) == 1 else ""


@lru_cache(maxsize=4096)  # looking a title up takes milliseconds
def _gpu_named(feature: str) -> str | None:
    try:
        device = get_device(device_of_type(feature, {}))
    except (InputError, UnknownNameError):
        return None
    return None if device.is_cpu else device.name


def split_type(kind: str) -> tuple[str, str | None]:
    """A GPU type of Slurm as (card, MIG profile or None), without the number that sites add to address single GPUs.

    `AutoDetect=nvml` joins card and profile by an underscore.

    >>> split_type("a100_3g.20gb"), split_type("v100_1"), split_type("1g.5gb_0"), split_type("rtx_3090")
    (('a100', '3g.20gb'), ('v100', None), ('', '1g.5gb'), ('rtx_3090', None))
    """
    plain = re.sub(r"_\d{1,2}$", "", kind)  # longer numbers belong to the product
    match = _MIG_TYPE.fullmatch(plain)
    return (match["card"] or "", match["profile"]) if match else (plain, None)


def device_of_type(kind: str, devices: Mapping[str, str]) -> str:
    """The catalogue name of a GPU type of Slurm, which may be a slice.

    Args:
        devices: names given by the caller, with precedence over recognised ones; by type, with or without the
            number behind it, by card, or by MIG profile.

    Raises:
        UnknownNameError: no catalogue type, or several, have that name.
        InputError: a slice of an unnamed card, or a part of a slice.
    """
    if kind in devices:
        return device_of(kind, devices)
    card, profile = split_type(kind)
    if profile is None:
        if _ANY_MIG_TYPE.search(card) and card not in devices:
            raise InputError(
                f"Gres type {kind!r} is another kind of MIG slice",
                expected="CARD_PROFILE of a whole slice, such as a100_3g.20gb",
                hint=f"specify it with --device '{kind}=CARD:mig=PROFILE'",
            )
        return device_of(card, devices)
    if profile in devices:
        return device_of(profile, devices)
    if not card:
        raise InputError(
            f"Gres type {kind!r} does not name the card of the slice",
            expected="CARD_PROFILE, such as a100_3g.20gb",
            hint=f"specify it with --device '{profile}=a100:mig={profile}'",
        )
    return _slice(card, profile, devices)


def _slice(title: str, profile: str, devices: Mapping[str, str]) -> str:
    """The slice with that profile of the card with that title; the profile may tell cards with one title apart."""
    try:
        layout = mig_layout(device_of(title, devices))
        return layout.device(_nearest(layout, profile) or layout.profile(profile))
    except UnknownNameError:
        if title in devices:
            raise
        words = re.sub(r"[_-]+", " ", title)
        slices = set()
        for spec in list_devices():
            if has_mig(spec.name) and match_catalogue(words, spec.memory_bytes) == spec:
                layout = mig_layout(spec.name)
                slices |= {layout.device(p) for p in [_nearest(layout, profile)] if p is not None}
        if len(slices) != 1:
            raise
        return slices.pop()


def _nearest(layout: MigLayout, profile: str) -> MigProfile | None:
    """The profile with that vendor's name or, failing that, with that memory in whole GiB; None if there is none.

    `AutoDetect=nvml` writes the slice's memory, not its name: a `3g.40gb` of an A100 has 39.25 GiB and becomes
    `3g.39gb`.
    """
    stated = _MIG_TYPE.fullmatch(profile)
    if stated is None:
        return None
    slices, room_gib = int(stated["slices"]), int(stated["gib"])
    alike = [p for p in layout.profiles if p.compute_slices == slices]
    named = [p for p in alike if p.name == profile.lower()]
    near = named or [p for p in alike if abs(p.memory_bytes / 2**30 - room_gib) < 1]
    return near[0] if near else None


def gpus_of(gres: str) -> tuple[list[str], int]:
    """A node's GPU types in index order, and shards per GPU.

    >>> gpus_of("gpu:k80:2(S:0),shard:k80:8")
    (['k80', 'k80'], 4)
    >>> gpus_of("gpu:a100,gpu:no_consume:1,shard:1K")
    (['a100', ''], 512)

    Raises:
        InputError: its GPUs or shards are not in Slurm's format.
        LimitError: more GPUs than `CLUSTER_GPUS`.
    """
    types: list[str] = []
    shards = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        if part.partition(":")[0] not in ("gpu", "shard"):
            continue
        match = _GRES.fullmatch(part)
        if match is None:
            raise InputError(
                "Gres is not understood", expected="gpu:TYPE:COUNT or shard:COUNT", got=part[:80]
            )
        unit = match["unit"] or ""
        count = int(match["count"] or 1) * 1024 ** (1 + _UNITS.index(unit.upper()) if unit else 0)
        if match["name"] == "gpu":
            check_counts({"GPUs": len(types) + count}, CLUSTER_GPUS)
            types += [match["type"] or ""] * count
        else:
            shards += count
    return types, shards // len(types) if types else 0


def host_names(text: str) -> list[str]:
    """The hosts of a Slurm host list.

    >>> host_names("gpu[01-03,7],login")
    ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'login']
    >>> host_names("rack[1-2]n[0-1]")
    ['rack1n0', 'rack1n1', 'rack2n0', 'rack2n1']
    """
    names: list[str] = []
    for part in _PART.findall(text):
        names += _expanded(part, text)
        check_counts({"nodes": len(names)}, CLUSTER_GPUS)
    return names


def _expanded(part: str, text: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, closed, after = rest.partition("]")
    ends = _expanded(after, text)
    names: list[str] = []
    for piece in inside.split(","):
        match = _RANGE.fullmatch(piece)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not closed or last < first:
            raise InputError("not a host list", expected="names such as gpu[01-04]", got=text[:80])
        check_counts({"nodes": len(names) + (last + 1 - first) * len(ends)}, CLUSTER_GPUS)
        for number in range(first, last + 1):
            names += [f"{before}{number:0{len(match[1])}d}{end}" for end in ends]
    return names


def _json_nodes(text: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, `Gres` and features of each node."""
    try:
        body = parse_json(text)
    except ValueError as error:
        raise InputError("not the JSON of Slurm", expected="sinfo --json", got=str(error)) from None
    rows: Any = body.get("nodes") or body.get("sinfo")
    if not isinstance(rows, list):
        raise InputError("not the JSON of Slurm", expected="a list 'nodes' or 'sinfo'", got=", ".join(body))
    for row in rows:
        if "name" in row:  # scontrol, and sinfo up to 22.05
            features = row.get("active_features") or row.get("features")
            yield str(row["name"]), str(row.get("gres") or ""), features_of(features)
        else:  # sinfo groups equal nodes
            gres, features = row.get("gres") or {}, row.get("features") or {}
            if isinstance(features, dict):
                features = features.get("active") or features.get("total")
            for name in (row.get("nodes") or {}).get("nodes") or []:
                total = str(gres.get("total") or "" if isinstance(gres, dict) else gres)
                yield str(name), total, features_of(features)


def _text_nodes(text: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """As `_json_nodes`."""
    if "NodeName=" in text:
        for block in re.split(r"(?=\bNodeName=)", text):
            fields = dict(re.findall(r"(\w+)=(\S*)", block))
            if "NodeName" in fields:
                gres = fields.get("Gres", "")
                yield (
                    fields["NodeName"],
                    "" if gres == "(null)" else gres,
                    features_of(fields.get("ActiveFeatures")),
                )
        return
    lines = [line.split() for line in text.splitlines() if line.strip()]
    header = [word.upper() for word in lines[0]] if lines else []
    if not {"NODELIST", "GRES"} <= set(header):
        raise InputError(
            "not the output of Slurm",
            expected="`sinfo -N -o '%N %G'`, `scontrol show nodes`, or either with --json",
            got=" ".join(lines[0])[:80] if lines else "nothing",
        )
    for cells in lines[1:]:
        row = dict(zip(header, cells, strict=False))
        for name in host_names(row.get("NODELIST", "")):
            gres = row.get("GRES", "")
            features = row.get("ACTIVE_FEATURES") or row.get("AVAIL_FEATURES")
            yield name, "" if gres == "(null)" else gres, features_of(features)
