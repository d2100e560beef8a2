"""Correcting a fitted predictor with observed step times."""
