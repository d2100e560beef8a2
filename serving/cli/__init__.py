"""The `cotenant` command: one file per group of commands, heavy imports inside the functions."""
