"""Tidy tables of measurements, importers of public data, named splits and the graph dataset."""
