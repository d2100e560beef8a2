"""REST service and command line. Contains no modelling or scheduling logic."""
