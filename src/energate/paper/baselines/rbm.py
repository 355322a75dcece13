"""`RBMClassifier`: a restricted Boltzmann machine trained by contrastive divergence, then fine-tuned as a network."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from energate.errors import InputError
from energate.estimators.edge import at_least_0, epochs_of, fraction_of, whole_number
from energate.estimators.network import Network, NetworkClassifier
from energate.estimators.progress import Reporter
from energate.paper.baselines.networks import Perceptron, start_at_mean
from energate.rbm import RBM
from energate.training import Stage, row_batches
from energate.units import MeanUnits

ACTIVITY_SHARE = 0.05  # of the newest batch in the running mean of the hidden units
GAUSSIAN_SHARE = 0.01  # Gaussian visible units are not bounded: only far smaller steps are stable


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


def centred(gradients: Sequence[Tensor], mean_v: Tensor, mean_h: Tensor) -> list[Tensor]:
    """Gradients in W (M, D), b (M,) and a (D,) as they are for a machine over v - ``mean_v`` and h - ``mean_h``.

    It is the same machine, with b' = b + W mean_v and a' = a + W^T mean_h as its biases, so a step in W no longer
    shifts the mean of all units.  Without this many hidden units follow the mean of the rows together.
    """
    W, b, a = gradients
    W = W - torch.outer(b, mean_v) - torch.outer(mean_h, a)
    return [W, b - W @ mean_v, a - mean_h @ W]


def with_gradients(value: Tensor, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """The value, with other gradients than its own."""
    linear = torch.stack([(p * g.detach()).sum() for p, g in zip(parameters, gradients, strict=True)]).sum()
    return value.detach() + linear - linear.detach()


@dataclass(eq=False, repr=False, kw_only=True)
class RBMClassifier(NetworkClassifier):
    """A restricted Boltzmann machine trained by contrastive divergence (Hinton 2002), whose hidden layer becomes that
    of a network with softmax output.

    Parameters
    ----------
    n_hidden : hidden units.
    n_gibbs : steps of Gibbs sampling from the data, the k of CD-k.
    sample_visible : sample visible units in these steps, too, instead of taking their mean.
    activity, sparsity : the mean that pretraining draws each hidden unit to, and how strongly; 0 is not at all.  Rare
        units are those that stand for a part of the image, and not for its background.
    l1 : penalty on the weights in pretraining, which makes them 0 where there is only noise.
    pretrain_epochs, pretrain_learning_rate : of contrastive divergence, by gradient descent with momentum and a rate
        that falls to 0; 0 epochs leave a network without pretraining.  Gaussian visible units take a hundredth of the
        rate.
    pretrained_rate : learning rate of the pretrained layer in fine-tuning, in units of ``learning_rate``, which is that
        of the output.  Codes of rare units need large output weights, and large steps would undo the pretraining.
    dropout : share of the hidden units left out in fine-tuning.

    The other parameters and the attributes are those of all baselines, see `NetworkClassifier`.  Visible units are
    binary for ``scaling="unit"``, where a value in [0, 1] counts as a probability, otherwise Gaussian of variance 1.
    ``rbm_`` is the `energate.rbm.RBM` as it was before fine-tuning.
    """

    _OPTIMIZER, _SCHEDULE = "adam", "constant"
    _CAPTURES: ClassVar = True

    n_hidden: int = 500
    n_gibbs: int = 1
    sample_visible: bool = False
    activity: float = 0.05
    sparsity: float = 0.3
    l1: float = 1e-4
    pretrain_epochs: int | str = "auto"
    pretrain_learning_rate: float = 0.3
    pretrained_rate: float = 0.1
    dropout: float = 0.0
    learning_rate: float = 3e-3

    def _epochs_before(self, n_steps: int) -> int:
        whole_number(self, "n_hidden", 1)
        whole_number(self, "n_gibbs", 1)
        fraction_of(self, "dropout")
        at_least_0(self, "pretrained_rate")
        at_least_0(self, "sparsity")
        at_least_0(self, "l1")
        if not fraction_of(self, "activity") > 0:
            raise InputError(
                "`activity` must be above 0; use sparsity=0 to let hidden units be as active as they like."
            )
        return epochs_of(self, "pretrain_epochs", n_steps)

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:
        generator = torch.Generator().manual_seed(seed)
        units = MeanUnits(1, train.shape[1], self.n_hidden, generator=generator)
        gaussian = self.scaling != "unit"
        visible = "gaussian" if gaussian else "bernoulli"
        rbm = RBM([units], torch.zeros(1, train.shape[1]), visible=visible).to(train.device)
        start_at_mean(units, rbm.model.a, train, self.activity, linear=gaussian)
        rate = self.pretrain_learning_rate * (GAUSSIAN_SHARE if gaussian else 1.0)
        draws = torch.Generator(train.device).manual_seed(seed)
        loss = self._contrastive_divergence(rbm, units, train, draws)
        epochs = epochs_of(self, "pretrain_epochs", math.ceil(len(train) / self.batch_size))
        stage = Stage("pretrain", epochs, rate, optimizer="sgd", schedule="cosine")
        batches = row_batches(len(train), self.batch_size, seed, train.device)
        self.history_["pretrain"] = stage.run(loss, rbm.parameters(), batches, listener=report, generators=[draws])
        sizes, rates = [train.shape[1], self.n_hidden, n_classes], [0.0, self.dropout]
        network = Perceptron(sizes, "sigmoid", generator, rates).to(train.device)
        if self.history_["pretrain"].loss:
            network.start_layer(0, units.W[0], units.b[0], self.pretrained_rate)
        self.rbm_ = rbm.double() if train.device.type == "cpu" else rbm
        return network

    def _contrastive_divergence(
        self, rbm: RBM, units: MeanUnits, train: Tensor, draws: torch.Generator
    ) -> Callable[[Tensor], Tensor]:
        mean_v, mean_h = train.mean(0), torch.full((self.n_hidden,), self.activity, device=train.device)
        parameters = [units.W, units.b, rbm.model.a]

        def loss(batch: Tensor) -> Tensor:
            v = train[batch]
            value = contrast(rbm, v, gibbs(rbm, v, self.n_gibbs, self.sample_visible, draws))
            gradients = [gradient[0] for gradient in torch.autograd.grad(value, parameters)]
            with torch.no_grad():
                active = units.encode(v, None)[0].mean(0)
                mean_h.lerp_(active, ACTIVITY_SHARE)
                W, b, a = centred(gradients, mean_v, mean_h)
                b += self.sparsity * (active - self.activity)
                # The penalty, too, leaves the mean of all units where it is.
                decay = self.l1 * units.W[0].sign()
                gradients = [W + decay, b - decay @ mean_v, a - mean_h @ decay]
            return with_gradients(value, [p[0] for p in parameters], gradients)

        return loss
