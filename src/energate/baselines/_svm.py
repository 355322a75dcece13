"""`svm`: scikit-learn's support vector machine with a Gaussian kernel, behind the scaling that the others have."""

from typing import Any

from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.svm import SVC

from energate.errors import InputError

SCALERS = {"unit": MinMaxScaler, "standard": StandardScaler, "none": FunctionTransformer}
#: what to search over with `sklearn.model_selection.GridSearchCV`
SVM_GRID: dict[str, list[Any]] = {"svc__C": [1.0, 10.0, 100.0], "svc__gamma": ["scale", 0.003, 0.01, 0.03, 0.1]}


def svm(C: float = 10.0, gamma: float | str = "scale", scaling: str = "unit", random_state: Any = None) -> Pipeline:
    """Scaling, then `sklearn.svm.SVC` with kernel exp(-gamma |x - x'|^2): a pipeline with steps ending in ``"svc"``."""
    if scaling not in SCALERS:
        raise InputError(f"`scaling` must be one of {', '.join(SCALERS)}; got {scaling!r}.")
    return make_pipeline(SCALERS[scaling](), SVC(C=C, gamma=gamma, random_state=random_state))
