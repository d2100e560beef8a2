"""Forms fitted to measured steps with a frozen prefix, and how far they are off: what `benchmarks.layer_throughput` scores."""

from benchmarks.layer_fits.fit import LayerTimeModel, Rows
from benchmarks.layer_fits.profile import LayerProfile

__all__ = ["LayerProfile", "LayerTimeModel", "Rows"]
