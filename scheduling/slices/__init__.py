"""MIG slices and MPS shares: which partition of which GPU for which jobs."""
