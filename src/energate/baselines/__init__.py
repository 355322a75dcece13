"""Other classifiers to compare with: those of the paper's first table, and a network of today."""

from energate.baselines._gated import GatedSoftmax
from energate.baselines._layers import DropoutMLP, StackedAutoencoderClassifier
from energate.baselines._rbm import RBMClassifier
from energate.baselines._svm import SVM_GRID, svm

__all__ = ["SVM_GRID", "DropoutMLP", "GatedSoftmax", "RBMClassifier", "StackedAutoencoderClassifier", "svm"]
