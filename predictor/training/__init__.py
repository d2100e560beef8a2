"""Fitting a predictor, fine-tuning it, and searching for a better configuration."""
