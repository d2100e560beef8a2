"""The E-GGAT layer, the two-level network built of it, and the baselines it must beat."""
