"""The E-GGAT layer, the two-level network built from it, the cost model, and the baselines to beat."""
