"""A fitted predictor: its parts, and how it is stored."""
