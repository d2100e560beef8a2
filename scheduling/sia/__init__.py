"""Sia: goodput-optimised scheduling over GPU types (Jayaram Subramanya et al., SOSP 2023), on measured applications."""
