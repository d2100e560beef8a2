"""Models fitted to measured steps with a frozen prefix, scored by `benchmarks.layer_throughput`."""

from benchmarks.layer_fits.fit import LayerTimeModel, Rows
from benchmarks.layer_fits.profile import LayerProfile

__all__ = ["LayerProfile", "LayerTimeModel", "Rows"]
