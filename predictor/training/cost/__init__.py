"""Fitting the cost model."""
