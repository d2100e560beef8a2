"""Traces: job lists from public logs, by columns, or drawn at random."""
