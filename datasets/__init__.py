"""Tidy tables of measurements, importers of others' data, named splits and the graph dataset."""
