"""Constants of the cost model's form, for the network that is fitted and the arrays that answer."""

from __future__ import annotations

OUTPUTS = ("compute_efficiency", "memory_efficiency", "block_share", "latency", "fused_traffic")
"""Of the network, per operator and pass, before their squashing (see `operator_times`)."""
EFFECTS = ("compute_efficiency", "memory_efficiency", "latency")
"""Outputs that a device type shifts."""
HOST_EFFECTS = ("launch", "fixed", "sample")
"""Host costs that a campaign shifts: its framework's version and machine."""

# Exponents of the norms that join what overlaps: arithmetic and memory within a kernel; device and host within a step.
OVERLAP, HOST_OVERLAP = 3.0, 4.0
# Where efficiencies start: logits of about 0.73 and 0.82, a third of a tile, 3 microseconds, a third of the traffic.
OFFSETS = (1.0, 1.5, -1.0, 0.0, -0.5)
