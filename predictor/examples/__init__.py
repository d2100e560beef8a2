"""Measured co-location sets as arrays, and how workloads become features."""
