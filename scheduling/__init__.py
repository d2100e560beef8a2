"""Cluster snapshots, placement policies and planners, and the simulator that judges them."""
