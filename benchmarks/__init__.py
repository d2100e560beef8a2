"""Long benchmarks, run as commands. Each prints its results and stores them with date, machine and command."""
