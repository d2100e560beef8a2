"""Layer-aware throughput: step time and memory of a job whose first k atomic layers are frozen.

`layer_throughput` needs a graph and a device type; `LayerTimeModel` is fitted to measurements of one model.
Source: Gao et al., "IceFrog", IEEE TPDS 36(6), 2025 (abstract); the forms are our own.
"""

from predictor.layers.allreduce import Exchange
from predictor.layers.fit import LayerTimeModel, Rows
from predictor.layers.profile import LayerProfile
from predictor.layers.roofline import LayerTimes, RooflineSettings, layer_times
from predictor.layers.throughput import LayerThroughput, layer_throughput

__all__ = [
    "Exchange",
    "LayerProfile",
    "LayerThroughput",
    "LayerTimeModel",
    "LayerTimes",
    "RooflineSettings",
    "Rows",
    "layer_throughput",
    "layer_times",
]
