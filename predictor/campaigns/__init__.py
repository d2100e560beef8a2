"""Which runs to measure next, and reports on what was measured."""
