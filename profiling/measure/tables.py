"""Converts records to tidy tables with the same columns as those of other sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from profiling.measure.device_usage import SET_MEANS
from profiling.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("workloads", "solo", "colocation", "freezing", "scaling", "graphs")
SOURCE = "cotenant"
LICENCE = "Apache-2.0"
_MEMBER_FIGURES = (
    "solo_step_time_s",
    "solo_step_time_mad_s",
    "solo_spread_ratio",
    "solo_verdict",
    "solo_samples_per_s",
    "step_time_s",
    "step_time_mad_s",
    "samples_per_s",
    "throughput_ratio",
    "throughput_ratio_mad",
    "spread_ratio",
    "verdict",
    "slowdown",
    "memory_bytes",
    "memory_source",
    "allocated_bytes",
    "reserved_bytes",
    "rss_bytes",
    "solo_utilization_ratio",
    "utilization_ratio",
    "solo_memory_bandwidth_ratio",
    "host_cpu_ratio",
    "samples_per_step",
    "total_layers",
    "parameter_count",
    "settled",
    "outcome",
    "message",
)
_SET_FIGURES = ("memory_bytes", *SET_MEANS)


def tables(records: Sequence[dict[str, Any]], campaign: str) -> dict[str, pd.DataFrame]:
    """Tables by name: `workloads`, `solo`, `colocation`, `freezing`, `scaling` and `graphs`, each only if it has
    rows, and `measurements`, with all results of every member of every run, including failed ones."""
    import pandas as pd

    rows = {
        "workloads": _workloads(records),
        "solo": _solo(records),
        "colocation": _colocation(records, campaign),
        "freezing": _freezing(records),
        "scaling": _scaling(records),
        "graphs": _graphs(records),
    }
    provenance = {"source": SOURCE, "campaign": campaign, "licence": LICENCE, "origin": "measured"}
    tables = {
        name: pd.DataFrame([{**row, **provenance} for row in some]) for name, some in rows.items() if some
    }
    tables["measurements"] = pd.DataFrame([{**row, "campaign": campaign} for row in _measurements(records)])
    return tables


def _job(member: dict[str, Any]) -> dict[str, Any]:
    """A user's own model is known to readers of the tables by its graph, a batch that stayed on the device as such."""
    spec = member.get("captured", member["workload"])
    if member.get("data_on_device"):
        spec = str(replace(Workload.parse(spec), data_on_device=True))
    return {
        "workload": spec,
        "architecture": member["architecture"],
        "batch_size": member["batch_size"],
    }


def _ok(record: dict[str, Any], *kinds: str) -> bool:
    """Whether a run is of one of `kinds` and none of its members failed."""
    return record["request"]["kind"] in kinds and all(m["outcome"] == "ok" for m in record["members"])


def _workloads(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    unique = {_job(m)["workload"]: m for r in records for m in r["members"]}
    return [
        {
            **_job(m),
            "precision": m["precision"],
            "parameter_count": m.get("parameter_count"),
            "dataset": "synthetic",
        }
        for m in unique.values()
    ]


def _solo(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per device and workload, from its solo run, or else medians over its solo windows within sets, of which
    disturbed ones count only if all are."""
    repeats: dict[tuple[str, str], list[dict[str, Any]]] = {}
    dedicated: set[tuple[str, str]] = set()
    for record in records:
        for member in record["members"]:
            # A job alone in a MIG slice is measured on that slice, not on the card.
            key = (member.get("device", record["device"]), _job(member)["workload"])
            if member["outcome"] != "ok" or "solo_step_time_s" not in member:
                continue
            if record["request"]["kind"] == "solo":
                repeats[key] = [member]
                dedicated.add(key)
            elif record["request"]["kind"] == "colocation" and key not in dedicated:
                repeats.setdefault(key, []).append(member)
    rows = []
    for (device, _), measured in repeats.items():
        members = [m for m in measured if not _disturbed(m)] or measured
        middle = {
            name: median(figures)
            for name in (
                "solo_step_time_s",
                "solo_samples_per_s",
                "memory_bytes",
                "solo_utilization_ratio",
                "solo_memory_bandwidth_ratio",
            )
            if (figures := [m[name] for m in members if _is_known(m, name)])
        }
        rows.append(
            {
                "device": device,
                **_job(members[0]),
                "precision": members[0]["precision"],
                "step_time_s": middle["solo_step_time_s"],
                "samples_per_s": middle.get("solo_samples_per_s"),
                "memory_bytes": middle.get("memory_bytes"),
                "utilization_ratio": middle.get("solo_utilization_ratio"),
                "memory_bandwidth_ratio": middle.get("solo_memory_bandwidth_ratio"),
                "gpus": 1,
                "disturbed": _disturbed(members[0]),
            }
        )
    return rows


def _disturbed(*members: dict[str, Any]) -> bool:
    return any("disturbed" in (m.get("solo_verdict"), m.get("verdict")) for m in members)


def _is_known(member: dict[str, Any], name: str) -> bool:
    """Whether a solo figure was measured. A disturbed job's share of the core says what others left it, not what it needs:
    as its utilisation, it would make a busy job an idle one."""
    return member.get(name) is not None and not (name == "solo_utilization_ratio" and _disturbed(member))


def _colocation(records: Sequence[dict[str, Any]], campaign: str) -> list[dict[str, Any]]:
    return [
        {
            "set_id": f"{campaign}/{record['device']}/{record['id']}",
            "member": index,
            "device": record["device"],
            "sharing": record["sharing"],
            **_job(member),
            "precision": member["precision"],
            "throughput_ratio": member["throughput_ratio"],
            "step_time_s": member["step_time_s"],
            "solo_step_time_s": member["solo_step_time_s"],
            "set_memory_bytes": record["set"].get("memory_bytes"),
            "set_utilization_ratio": None if disturbed else record["set"].get("utilization_ratio"),
            "set_memory_bandwidth_ratio": record["set"].get("memory_bandwidth_ratio"),
            "censored": False,
            "is_target": True,
            "disturbed": disturbed,
        }
        for record in records
        if _ok(record, "colocation") and all("throughput_ratio" in m for m in record["members"])
        for disturbed in [_disturbed(*record["members"])]
        for index, member in enumerate(record["members"])
    ]


def _freezing(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for record in records:
        if not (_ok(record, "freezing", "ddp") and "solo_step_time_s" in record["members"][0]):
            continue
        member, request = record["members"][0], record["request"]
        if request["kind"] == "ddp" and not request["rewrapped"]:
            note: str | None = "wrapped-before-freezing"
        else:
            note = "cached-activations" if request.get("cached_activations") else None
        rows.append(
            {
                "device": record["device"],
                **_job(member),
                "frozen_prefix": member["frozen_prefix"],
                "total_layers": member["total_layers"],
                "gpus": request.get("processes", 1),
                "nodes": 1,
                "step_time_s": member["solo_step_time_s"],
                "sync_time_s": member.get("sync_time_s"),
                "memory_bytes": member.get("memory_bytes"),
                "note": note,
                "disturbed": _disturbed(member),
            }
        )
    return rows


def _scaling(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "device": record["device"],
            **_job(record["members"][0]),
            "gpus": record["request"]["processes"],
            "nodes": 1,
            "placement": "consolidated",
            "step_time_s": record["members"][0]["solo_step_time_s"],
            "sync_time_s": record["members"][0].get("sync_time_s"),
        }
        for record in records
        if _ok(record, "ddp") and record["members"][0]["frozen_prefix"] == 0
    ]


def _graphs(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    unique = {
        (r["device"], r["members"][0]["workload"]): r
        for r in records
        if _ok(r, "operators") and r.get("nodes")
    }
    rows = []
    for record in unique.values():
        member = record["members"][0]
        rows += [
            {
                **_job(member),
                "device": record["device"],
                **{k: node[k] for k in ("node", "operator", "inputs", "forward_time_s", "backward_time_s")},
                **{k: node[k] for k in ("activation_bytes", "parameter_bytes")},
            }
            for node in record["nodes"]
        ]
    return rows


def _measurements(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "run_id": record["id"],
            "kind": record["request"]["kind"],
            "started_at": record["started_at"],
            "device": member.get("device", record["device"]),
            "sharing_asked": record["request"]["sharing"],
            "sharing": record["sharing"],
            "host_input": record["host_input"],
            "member": index,
            **_job(member),
            "workload": member["workload"],
            "precision": member["precision"],
            "frozen_prefix": member["frozen_prefix"],
            "cached_activations": bool(record["request"].get("cached_activations")),
            "repeats": len(record.get("repeats", [])),
            "disturbed_windows": record.get("disturbed_windows", 0),
            **{name: member.get(name) for name in _MEMBER_FIGURES},
            **{f"set_{name}": record.get("set", {}).get(name) for name in _SET_FIGURES},
            # Only if a profiler had counters, so other campaigns lack these columns.
            **{f"counter_{k}": v for k, v in (record.get("set", {}).get("counters") or {}).items()},
            "throttle_reasons": " ".join(record.get("set", {}).get("throttle_reasons", [])),
            "notes": "; ".join(record["notes"]),
        }
        for record in records
        for index, member in enumerate(record["members"])
    ]
