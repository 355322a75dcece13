"""Other classifiers to compare with: those of the paper's tables, and systems of today."""

from energate.baselines._deep import DeepEnergyClassifier
from energate.baselines._gated import GatedSoftmax
from energate.baselines._hashcrbm import ConditionalRBM, HashCRBM, HashTable
from energate.baselines._layers import DropoutMLP, StackedAutoencoderClassifier
from energate.baselines._logcount import LogCountProjection
from energate.baselines._meanlabels import MeanLabels
from energate.baselines._multilabel import (
    EachLabel,
    LabelChains,
    MLkNN,
    boosted_labels,
    chain_labels,
    logistic_labels,
)
from energate.baselines._rbm import RBMClassifier
from energate.baselines._svm import SVM_GRID, GaussianSVC, SVMSearch, SVMTrial, search_svm, svm
from energate.baselines._svmlabels import SVMLabels, svm_labels

__all__ = [
    "SVM_GRID",
    "ConditionalRBM",
    "DeepEnergyClassifier",
    "DropoutMLP",
    "EachLabel",
    "GatedSoftmax",
    "GaussianSVC",
    "HashCRBM",
    "HashTable",
    "LabelChains",
    "LogCountProjection",
    "MLkNN",
    "MeanLabels",
    "RBMClassifier",
    "SVMLabels",
    "SVMSearch",
    "SVMTrial",
    "StackedAutoencoderClassifier",
    "boosted_labels",
    "chain_labels",
    "logistic_labels",
    "search_svm",
    "svm",
    "svm_labels",
]
