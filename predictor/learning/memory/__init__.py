"""Memory, and whether sets fit: jobs related to measured ones, sets that ran, and sets that ran out of memory."""
