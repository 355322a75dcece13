"""Questions that one exact energy answers: which columns did it, which labels are wrong, has the data changed.

Prediction sets, p-values and missing cells are the estimators' own: `conformalize`, `predict_set`, `p_values`,
`complete`.
"""

from energate.questions.attribution import Attribution, attribute, importance
from energate.questions.auditing import LabelErrors, label_errors
from energate.questions.changing import Counterfactual, counterfactual
from energate.questions.drifting import Drift, drift

__all__ = [
    "Attribution",
    "Counterfactual",
    "Drift",
    "LabelErrors",
    "attribute",
    "counterfactual",
    "drift",
    "importance",
    "label_errors",
]
