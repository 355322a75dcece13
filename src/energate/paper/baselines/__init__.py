"""Other classifiers to compare with: those of the paper's tables, and systems of today."""

from energate.paper.baselines._gated import GatedSoftmax
from energate.paper.baselines._hashcrbm import ConditionalRBM, HashCRBM, HashTable
from energate.paper.baselines._layers import DropoutMLP, StackedAutoencoderClassifier
from energate.paper.baselines._logcount import LogCountProjection
from energate.paper.baselines._meanlabels import MeanLabels
from energate.paper.baselines._multilabel import (
    EachLabel,
    LabelChains,
    MLkNN,
    boosted_labels,
    chain_labels,
    logistic_labels,
)
from energate.paper.baselines._rbm import RBMClassifier
from energate.paper.baselines._svm import SVM_GRID, GaussianSVC, SVMSearch, SVMTrial, search_svm, svm
from energate.paper.baselines._svmlabels import SVMLabels, svm_labels

__all__ = [
    "SVM_GRID",
    "ConditionalRBM",
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
