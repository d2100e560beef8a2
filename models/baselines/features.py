"""Feature rows of the tree baselines: names and sizes of the members and, optionally, their solo profiles.

Nothing measured under co-location is a feature. A column exists for every name seen in training; a name that
was not is all zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from datasets.bundle import Bundle, partners
from profiling.errors import UnknownNameError

if TYPE_CHECKING:
    import pandas as pd

_SOLO = ("step_time_s", "samples_per_s", "memory_bytes", "utilization_ratio", "memory_bandwidth_ratio")
_LOGARITHMIC = frozenset({"step_time_s", "samples_per_s", "memory_bytes"})
_CONTEXT = ("device", "sharing", "campaign")


class FeatureTable:
    """Turns the rows of a bundle into numbers.

    Args:
        solo: whether to add solo profiles and figures of the device as features.
    """

    def __init__(self, solo: bool) -> None:
        self.solo = solo

    def fit(self, train: Bundle) -> FeatureTable:
        """Fix the columns: the architectures and the context (device, sharing, campaign) seen in training."""
        frame = train.frame
        self.architectures_ = sorted(set(frame["architecture"]))
        self.context_ = {name: sorted(set(frame[name])) for name in _CONTEXT if name in frame}
        return self

    def transform(self, bundle: Bundle) -> NDArray[np.float64]:
        """[n, columns] for `bundle.rows`; NaN where a solo run is unknown."""
        frame = bundle.frame.reset_index(drop=True)
        members = self._members(bundle, frame)
        if bundle.target == "solo_step_time_s":
            blocks = [members]
        elif bundle.target == "throughput_ratio":
            # The member itself, then the sum over its partners (for a pair: the partner).
            others = np.stack([members[index].sum(axis=0) for index in partners(frame)])
            blocks = [members, others]
        else:
            # For properties of a set, features must not depend on the order of its members.
            of_set = frame.groupby("set_id", sort=False).indices
            parts = [members[of_set[set_id]] for set_id in dict.fromkeys(frame["set_id"])]
            blocks = [
                np.stack([part.sum(axis=0) for part in parts]),
                np.stack([part.max(axis=0) for part in parts]),
            ]
            frame = frame[~frame["set_id"].duplicated()]
        for name, values in self.context_.items():
            blocks.append(one_hot(frame[name], values))
        if self.solo:
            blocks.append(device_numbers(frame["device"]))
        return np.hstack(blocks)

    def _members(self, bundle: Bundle, frame: pd.DataFrame) -> NDArray[np.float64]:
        batch = frame["batch_size"].to_numpy(dtype=np.float64, na_value=np.nan)
        blocks = [
            one_hot(frame["architecture"], self.architectures_),
            np.log2(batch)[:, None],
            (frame["precision"] != "fp32").to_numpy(dtype=np.float64)[:, None],
        ]
        if self.solo and bundle.target != "solo_step_time_s":
            key = ["device", "workload", "campaign"]
            alone = bundle.solo[bundle.solo["gpus"] == 1].drop_duplicates(key)[[*key, *_SOLO]]
            known = frame[key].merge(alone, on=key, how="left")
            for name in _SOLO:
                values = known[name].to_numpy(dtype=np.float64)
                blocks.append((np.log(values) if name in _LOGARITHMIC else values)[:, None])
        return np.hstack(blocks)


def one_hot(column: pd.Series, values: list[str]) -> NDArray[np.float64]:
    """[n, len(values)] 1 where a cell equals the value."""
    return (column.to_numpy(dtype=object)[:, None] == np.array(values, dtype=object)[None, :]).astype(
        np.float64
    )


def device_numbers(devices: pd.Series) -> NDArray[np.float64]:
    """[n, 5] logs of peak rates, bandwidth, memory and multiprocessors.

    NaN for a device outside the catalogue.
    """
    from profiling.devices import get_device

    numbers: dict[str, list[float]] = {}
    for name in set(devices):
        try:
            d = get_device(name)
            row = [
                d.sm_count,
                d.fp32_flops,
                max(d.fp16_flops, 1.0),
                d.memory_bandwidth_bytes_per_s,
                d.memory_bytes,
            ]
            numbers[name] = list(np.log(row))
        except UnknownNameError:
            numbers[name] = [np.nan] * 5
    return np.array([numbers[name] for name in devices])
