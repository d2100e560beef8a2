"""Training, evaluation, calibration, export and registry of the co-location predictor."""
