"""Cluster snapshots, placement policies, planners, and the simulator that evaluates them."""
