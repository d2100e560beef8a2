"""A cluster as the text of a cluster.yaml, equal GPUs and equal nodes written once."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from scheduling.core.snapshot import ClusterSnapshot


def to_yaml(cluster: ClusterSnapshot) -> str:
    """Text that `ClusterSnapshot.load` reads back as an equal cluster."""
    import yaml

    mapping = cluster.to_mapping()
    nodes = [{"name": node["name"], "gpus": _gpus(node["gpus"])} for node in mapping["nodes"]]
    body: dict[str, Any] = {"nodes": nodes}
    if mapping["links"]:
        body["links"] = mapping["links"]
    return str(yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=110))


def _gpus(gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if [gpu["id"] for gpu in gpus] != [str(k) for k in range(len(gpus))]:
        return [{"id": gpu["id"], **_plain(gpu)} for gpu in gpus]
    written = []
    for _, equal in groupby(gpus, key=_plain):
        same = list(equal)
        # Only GPUs without tenants are merged, because `count` would repeat the tenants too.
        if len(same) > 1 and not same[0]["tenants"]:
            written.append({**_plain(same[0]), "count": len(same)})
        else:
            written.extend(_plain(gpu) for gpu in same)
    return written


def _plain(gpu: dict[str, Any]) -> dict[str, Any]:
    plain = {"device": gpu["device"]}
    if gpu["sharing"] != "time-slice":
        plain["sharing"] = gpu["sharing"]
    if gpu["tenants"]:
        plain["tenants"] = gpu["tenants"]
    if gpu.get("tenants_assumed"):
        plain["tenants_assumed"] = True
    return plain
