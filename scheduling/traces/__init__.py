"""Traces: job lists from public logs, by columns, or generated at random."""
