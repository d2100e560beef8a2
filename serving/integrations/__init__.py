"""Integrations with other schedulers.

Slurm and Ray ask the service where a job should share a GPU, and continue without it if it is down.
"""
