"""REST service and command line. No logic of its own."""
