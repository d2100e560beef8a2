"""Which runs to measure next, and reports on measurements."""
