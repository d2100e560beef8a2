"""Discrete-event simulation of a cluster: the same policies as the service runs, against a ground truth of their own."""
