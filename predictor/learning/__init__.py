"""Correcting a fitted predictor by observed step times."""
