"""Answers to sets that nobody measured, from which the network learns besides measurements."""
