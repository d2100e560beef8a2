"""Answers to sets that were not measured, from which the network learns besides measurements."""
