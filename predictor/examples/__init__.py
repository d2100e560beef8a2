"""Measured co-location sets as arrays, and features of workloads."""
