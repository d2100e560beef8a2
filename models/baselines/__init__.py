"""Baselines: means, rules of thumb, rooflines, linear models, trees, transfer and graph convolutions."""

from models.baselines.additive import AdditivePredictor
from models.baselines.constant import ConstantPredictor
from models.baselines.trees import TreePredictor

__all__ = ["AdditivePredictor", "ConstantPredictor", "TreePredictor"]
