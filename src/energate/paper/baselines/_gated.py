"""`GatedSoftmax`: the gated softmax classifier (GSM)."""

from typing import Any

import torch
from torch import Tensor, nn

from energate.estimators.network import Network, NetworkClassifier, fraction_of, whole_number
from energate.estimators.progress import Reporter
from energate.paper.baselines._perceptron import drop
from energate.units import GatedUnits

START = 3.0  # times the usual size of gated weights: labels enter as single ones, and three factors are multiplied


class GatedNetwork(Network):
    """log p(y|x) = a_y + sum_k softplus(b_k + sum_f W_h[k, f] (W_x x)_f W_y[f, y]), up to a constant.

    The softplus is what is left of a binary hidden unit that is summed over.  It is the energy of a gated
    auto-encoder whose visible vector is the label, a single one among zeros, and whose context is x: the row less
    ``centre``.  ``dropout`` and ``factor_dropout`` are shares of the row and of the factors W_x x.
    """

    def __init__(
        self,
        width: int,
        n_classes: int,
        n_factors: int,
        n_hidden: int,
        generator: torch.Generator,
        dropout: float = 0.0,
        factor_dropout: float = 0.0,
        centre: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.dropout, self.factor_dropout = dropout, factor_dropout
        self.register_buffer("centre", torch.zeros(width) if centre is None else centre.clone())
        self.centre: Tensor
        self.units = GatedUnits(1, n_classes, width, n_factors, n_hidden, generator=generator)
        with torch.no_grad():
            for W in (self.units.W_x, self.units.W_y, self.units.W_h):
                W.mul_(START)
        self.a = nn.Parameter(torch.zeros(n_classes))

    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        v = drop(v, self.dropout, noise)
        W_x, W_y, W_h = self.units.W_x[0], self.units.W_y[0], self.units.W_h[0]
        # All classes share W_x x; an energy for every pair of row and label would compute it K times.
        f = drop((v - self.centre) @ W_x.T, self.factor_dropout, noise)  # (N, F)
        q = f.unsqueeze(1) * W_y.T  # (N, 1, F) (K, F) -> (N, K, F)
        u = q @ W_h.T + self.units.b[0]  # (N, K, M)
        return self.a + self.units.activation.potential(u)  # (N, K)


class GatedSoftmax(NetworkClassifier):
    """The gated softmax classifier of Memisevic, Zach, Hinton and Pollefeys (2010): every class has its own log-linear
    model over binary hidden units, which are summed over exactly, and the models share factors.

    Parameters
    ----------
    n_hidden, n_factors : binary hidden units, and factors that the classes share.
    input_dropout, factor_dropout : share of the values, and of the factors, left out in training; without either the
        model fits the rows as a linear one would.

    The other parameters and the attributes are those of all baselines, see `NetworkClassifier`.
    """

    _OPTIMIZER, _SCHEDULE = "adam", "cosine"

    def __init__(
        self,
        *,
        n_hidden: int = 100,
        n_factors: int = 100,
        input_dropout: float = 0.3,
        factor_dropout: float = 0.0,
        max_epochs: int | str = "auto",
        learning_rate: float = 3e-3,
        weight_decay: float = 0.0,
        batch_size: int = 100,
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 20,
        monitor: str = "log_loss",
        scaling: str = "unit",
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            max_epochs=max_epochs,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            batch_size=batch_size,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            monitor=monitor,
            scaling=scaling,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.n_hidden = n_hidden
        self.n_factors = n_factors
        self.input_dropout = input_dropout
        self.factor_dropout = factor_dropout

    def _epochs_before(self, n_steps: int) -> int:  # noqa: ARG002
        whole_number(self, "n_hidden", 1)
        whole_number(self, "n_factors", 1)
        fraction_of(self, "input_dropout")
        fraction_of(self, "factor_dropout")
        return 0

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:  # noqa: ARG002
        generator = torch.Generator().manual_seed(seed)
        sizes = (train.shape[1], n_classes, self.n_factors, self.n_hidden)
        rates = (self.input_dropout, self.factor_dropout)
        # Factors that are 0 at the mean row tell the classes apart from the first step on.
        return GatedNetwork(*sizes, generator, *rates, centre=train.mean(0).cpu()).to(train.device)
