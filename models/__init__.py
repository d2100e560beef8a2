"""The E-GGAT layer, the two-level network built from it, and the baselines that it must beat."""
