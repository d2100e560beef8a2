"""Accuracy of predictors: metrics, cross-fitting, protocols."""
