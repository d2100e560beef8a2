"""Captures computation graphs, describes GPU types, and measures jobs."""
