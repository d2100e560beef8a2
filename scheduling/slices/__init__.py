"""MIG slices and MPS shares: how to partition each GPU, and which jobs run where."""
