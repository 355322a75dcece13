"""`RBMClassifier`: a restricted Boltzmann machine trained by contrastive divergence, then fine-tuned as a network."""

from typing import Any

import torch
from torch import Tensor

from energate.baselines._network import NetworkClassifier, epochs_of, whole_number
from energate.baselines._perceptron import Network, Perceptron
from energate.estimators._loop import Reporter
from energate.rbm import RBM
from energate.units import MeanUnits


@torch.no_grad()
def gibbs(rbm: RBM, v: Tensor, n_steps: int, sample_visible: bool, generator: torch.Generator | None = None) -> Tensor:
    """Rows (N, D) after some steps of Gibbs sampling in one machine over `MeanUnits`.

    Hidden units are always sampled, from p(h|v) = sigmoid(u(v)).  Visible ones are sampled, or take their mean
    given h: a chain that is no longer exact, but less noisy.
    """
    group, model = rbm.groups[0], rbm.model
    for _ in range(n_steps):
        p_h = group.encode(v, None)  # (1, N, M)
        h = torch.bernoulli(p_h, generator=generator)
        v = model.visible.f(group.decode(h, None) + model.a.unsqueeze(1))[0]  # the mean of v given h
        if sample_visible and rbm.visible == "bernoulli":
            v = torch.bernoulli(v, generator=generator)
        elif sample_visible:
            v = v + torch.randn(v.shape, generator=generator, dtype=v.dtype, device=v.device)
    return v


def contrast(rbm: RBM, data: Tensor, model: Tensor) -> Tensor:
    """Mean free energy of ``data`` rows less that of the ``model``'s rows: ().

    Its gradient is that of minus the log-likelihood once the second rows come from the model: in W it is
    <h v^T> of the model less <h v^T> of the data, h the mean of the hidden units given v.
    """
    return rbm.free_energy(data).mean() - rbm.free_energy(model).mean()


class RBMClassifier(NetworkClassifier):
    """A restricted Boltzmann machine trained by contrastive divergence (Hinton 2002), whose hidden layer becomes that
    of a network with softmax output.

    Parameters
    ----------
    n_hidden : hidden units.
    n_gibbs : steps of Gibbs sampling from the data, the k of CD-k.
    sample_visible : sample visible units in these steps, too, instead of taking their mean.
    pretrain_epochs, pretrain_learning_rate : of contrastive divergence; 0 epochs leave a network without pretraining.

    The other parameters and the attributes are those of all baselines, see `NetworkClassifier`.  Visible units are
    binary for ``scaling="unit"``, where a value in [0, 1] counts as a probability, otherwise Gaussian of variance 1.
    ``rbm_`` is the `energate.rbm.RBM` as it was before fine-tuning.
    """

    _OPTIMIZER, _SCHEDULE = "adam", "constant"

    def __init__(
        self,
        *,
        n_hidden: int = 500,
        n_gibbs: int = 1,
        sample_visible: bool = False,
        pretrain_epochs: int | str = "auto",
        pretrain_learning_rate: float = 1e-3,
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
        self.n_gibbs = n_gibbs
        self.sample_visible = sample_visible
        self.pretrain_epochs = pretrain_epochs
        self.pretrain_learning_rate = pretrain_learning_rate

    def _epochs_before(self, n_steps: int) -> int:
        whole_number(self, "n_hidden", 1)
        whole_number(self, "n_gibbs", 1)
        return epochs_of(self, "pretrain_epochs", n_steps)

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:
        generator = torch.Generator().manual_seed(seed)
        units = MeanUnits(1, train.shape[1], self.n_hidden, generator=generator)
        visible = "bernoulli" if self.scaling == "unit" else "gaussian"
        rbm = RBM([units], torch.zeros(1, train.shape[1]), visible=visible).to(train.device)
        draws = torch.Generator(train.device).manual_seed(seed)

        def loss(batch: Tensor) -> Tensor:
            v = train[batch]
            return contrast(rbm, v, gibbs(rbm, v, self.n_gibbs, self.sample_visible, draws))

        self._minimise("pretrain", loss, rbm, train, "pretrain_epochs", self.pretrain_learning_rate, seed, report)
        network = Perceptron([train.shape[1], self.n_hidden, n_classes], "sigmoid", generator).to(train.device)
        if self.history_["pretrain"].loss:
            network.start_layer(0, units.W[0], units.b[0])
        self.rbm_ = rbm.double() if train.device.type == "cpu" else rbm
        return network
