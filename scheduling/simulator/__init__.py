"""Discrete-event simulation of a cluster: the same policies as in the service, against a separate ground
truth."""
