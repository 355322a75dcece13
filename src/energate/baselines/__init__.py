"""Other classifiers to compare with: those of the paper's first table, and networks of today."""

from energate.baselines._deep import DeepEnergyClassifier
from energate.baselines._gated import GatedSoftmax
from energate.baselines._layers import DropoutMLP, StackedAutoencoderClassifier
from energate.baselines._rbm import RBMClassifier
from energate.baselines._svm import SVM_GRID, GaussianSVC, SVMSearch, SVMTrial, search_svm, svm

__all__ = [
    "SVM_GRID",
    "DeepEnergyClassifier",
    "DropoutMLP",
    "GatedSoftmax",
    "GaussianSVC",
    "RBMClassifier",
    "SVMSearch",
    "SVMTrial",
    "StackedAutoencoderClassifier",
    "search_svm",
    "svm",
]
