"""Layer-aware throughput: step time and memory of a job whose first k atomic layers are frozen.

`layer_throughput` needs a graph and a device type, and no measurement.
Source: Gao et al., "IceFrog", IEEE TPDS 36(6), 2025 (abstract); the forms are our own.
"""

from predictor.freezing.allreduce import Exchange
from predictor.freezing.layer_times import FrameworkCosts, LayerTimes, layer_times
from predictor.freezing.throughput import LayerThroughput, layer_throughput

__all__ = [
    "Exchange",
    "FrameworkCosts",
    "LayerThroughput",
    "LayerTimes",
    "layer_throughput",
    "layer_times",
]
