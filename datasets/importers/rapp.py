"""Inference of torchvision's networks alone under MPS shares on a V100 16 GB (RaPP, FaST-GShare; Apache-2.0).

In `graph_features_all_models/*.json`, `profiling_result` is a list of `batch`, `sm` (share of the SMs in
percent), `quota` (share of time windows in percent) and `latency` in ms. Upstream has one file per network
and share; a file that concatenates them has the same entries.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from datasets.importers.base import Import, find_files, read_object, spec
from profiling.errors import InputError

DEVICE, IMAGE_SIZE = "v100", 224


def read(folder: Path) -> Import:
    """Read every file below `graph_features_all_models`.

    Raises:
        InputError: there are none, or one is malformed; with the entry.
    """
    result = Import("rapp")
    seen: dict[str, float] = {}
    for path in find_files(folder, "graph_features_all_models/*.json"):
        body = read_object(path, "{model_name, profiling_result}")
        if not (isinstance(body.get("model_name"), str) and isinstance(body.get("profiling_result"), list)):
            raise InputError(f"{path} is not RaPP's", expected="model_name and profiling_result")
        for number, entry in enumerate(body["profiling_result"]):
            result.read += 1
            batch, share, quota, latency_ms = _numbers(entry, f"{path}, entry {number}")
            if quota < 100:
                result.dropped["time quota below 100 %: the wait for the next window is in the latency"] += 1
                continue
            workload = spec(
                f"torchvision/{body['model_name']}",
                batch_size=batch,
                image_size=IMAGE_SIZE,
                mode="inference",
                sm_share_ratio=share / 100,
            )
            if workload in seen:
                result.dropped["repeated in another file"] += 1
                if seen[workload] != latency_ms:
                    raise InputError(
                        f"{path}, entry {number} contradicts another file",
                        expected=str(seen[workload]),
                        got=latency_ms,
                    )
                continue
            seen[workload] = latency_ms
            result.add_workload("rapp", workload)
            result.add(
                "solo",
                "rapp",
                device=DEVICE,
                workload=workload,
                step_time_s=latency_ms / 1e3,
                samples_per_s=batch / latency_ms * 1e3,
                gpus=1,
            )
    result.notes.append("one process at a time: a share is a bound on it, not a neighbour")
    return result


def _numbers(entry: Any, where: str) -> tuple[int, int, int, float]:
    try:
        batch, share, quota = (entry[key] for key in ("batch", "sm", "quota"))
        latency_ms = float(entry["latency"])
    except (KeyError, TypeError, ValueError):
        raise InputError(where, expected="batch, sm, quota and latency", got=repr(entry)[:80]) from None
    whole = all(isinstance(value, int) for value in (batch, share, quota))
    if not whole or batch < 1 or not (0 < share <= 100 and 0 < quota <= 100):
        raise InputError(where, expected="a batch from 1, sm and quota in percent", got=repr(entry)[:80])
    if not 0 < latency_ms < math.inf:
        raise InputError(where, expected="latency in ms, above 0", got=latency_ms)
    return batch, share, quota, latency_ms
