"""Other classifiers to compare with: those of the paper's tables, and systems of today."""

from energate.paper.baselines.hashcrbm import ConditionalRBM, HashCRBM, HashTable
from energate.paper.baselines.labels import EachLabel, LabelChains, MLkNN, boosted_labels, chain_labels, logistic_labels
from energate.paper.baselines.networks import DropoutMLP, GatedSoftmax, StackedAutoencoderClassifier
from energate.paper.baselines.over import LogCountProjection, MeanLabels
from energate.paper.baselines.rbm import RBMClassifier
from energate.paper.baselines.svms import (
    SVM_GRID,
    GaussianSVC,
    SVMLabels,
    SVMSearch,
    SVMTrial,
    search_svm,
    svm,
    svm_labels,
)

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
