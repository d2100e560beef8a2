"""Baselines: a constant, additive utilisation, and tree ensembles."""

from models.baselines.additive import AdditivePredictor
from models.baselines.constant import ConstantPredictor
from models.baselines.trees import TreePredictor

__all__ = ["AdditivePredictor", "ConstantPredictor", "TreePredictor"]
