"""Placement of single jobs on a cluster."""
