"""Measurement campaigns that can be resumed after a kill at any time.

A plan lists the runs; the runner executes those that are not in any slice yet.
"""
