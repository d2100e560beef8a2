"""Evaluation protocols: named data, split and target; run for every registered predictor, and resumable."""
