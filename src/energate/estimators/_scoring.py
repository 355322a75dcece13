"""What a fitted `EnergyClassifier` says of rows: energies, probabilities, codes."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from energate.errors import InputError
from energate.estimators.edge import Array, Scaler, in_chunks
from energate.training.classes import ClassEnergies


def any_class(energies: torch.Tensor) -> Array:
    """How much any class likes each row: (N, K) -> (N,)."""
    return torch.logsumexp(energies.detach().double(), 1).cpu().numpy()


class ScoringMixin:
    """Scores of rows under ``model_``, behind ``scaler_``."""

    scaling: str
    classes_: NDArray[Any]
    model_: ClassEnergies
    scaler_: Scaler
    liking_: Array

    def _score(self, X: Any, what: str) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        score = {
            "logits": self.model_.logits,
            "energies": self.model_.energies,
            "units": self.model_.encode,
        }[what]
        # With sigmoid outputs the energy ends at 0 and 1.
        inside = (lambda v: score(v.clamp(0, 1))) if self.scaling == "unit" else score
        return in_chunks(X, self.scaler_, self.model_.B, inside)

    def energies(self, X: Any) -> Array:
        """How much each class likes each row, calibrated: (n, K), higher is better; no term is left out."""
        return self._score(X, "energies")

    def decision_function(self, X: Any) -> Array:
        """Calibrated energies (n, K), less a term that all classes share; for two classes their difference (n,)."""
        logits = self._score(X, "logits")
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_log_proba(self, X: Any) -> Array:
        """Log-probabilities of the classes: (n, K)."""
        logits = self._score(X, "logits")
        logits = logits - logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def predict_proba(self, X: Any) -> Array:
        """Probabilities of the classes: (n, K)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        logits = self._score(X, "logits")
        return self.classes_[logits.argmax(axis=1)]

    def score_samples(self, X: Any) -> Array:
        """How much any class likes each row: log-sum-exp over classes of the calibrated energies, higher is better."""
        return any_class(torch.as_tensor(self.energies(X)))

    def rejects(self, X: Any, rate: float = 0.01) -> NDArray[np.bool_]:
        """Rows that no class likes: below all but ``rate`` of the rows that `fit` held out (or else trained on)."""
        if not 0 < rate < 1:
            raise InputError(f"`rate` must be above 0 and below 1; got {rate}.")
        return self.score_samples(X) < np.quantile(self.liking_, rate)
