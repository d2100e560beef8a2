"""Sia: goodput-optimised scheduling over GPU types, on measured applications.

Jayaram Subramanya et al., SOSP 2023.
"""
