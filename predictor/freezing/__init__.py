"""Layer-aware throughput: step time and memory of a job whose first k atomic layers are frozen.

`layer_throughput` needs a graph and a device type, and no measurement.
Source: Gao et al., "IceFrog", IEEE TPDS 36(6), 2025 (abstract); the forms are our own.
"""

from predictor.freezing.throughput import LayerThroughput, layer_throughput

__all__ = ["LayerThroughput", "layer_throughput"]
