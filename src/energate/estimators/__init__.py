"""scikit-learn estimators over the exact energies."""

from energate.estimators.classifier import EnergyClassifier
from energate.estimators.encoder import TableEncoder
from energate.estimators.images import ImageEnergyClassifier
from energate.estimators.imputer import EnergyImputer
from energate.estimators.mlp import LabelMLP
from energate.estimators.pairs import PairScorer
from energate.estimators.refiner import EnergyRefiner
from energate.estimators.scorer import EnergyScorer

__all__ = [
    "EnergyClassifier",
    "EnergyImputer",
    "EnergyRefiner",
    "EnergyScorer",
    "ImageEnergyClassifier",
    "LabelMLP",
    "PairScorer",
    "TableEncoder",
]
