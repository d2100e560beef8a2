"""Long benchmarks, run as commands. Each prints and stores its results with date, machine and command."""
