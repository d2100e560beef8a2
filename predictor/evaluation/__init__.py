"""How right a predictor is: metrics, cross-fitting, protocols."""
