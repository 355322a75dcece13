"""Feed-forward networks of classes: stacked auto-encoders (SAA-3), gated softmax (GSM), and a dropout network."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from energate.activations import as_activation
from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators.edge import at_least_0, epochs_of, fraction_of, whole_number
from energate.estimators.network import Network, NetworkClassifier
from energate.estimators.progress import Reporter
from energate.training import Stage, corrupt, row_batches
from energate.units import GatedUnits, MeanUnits

LEAST_MEAN = 0.02  # and at most 1 less that: the log-odds of columns that are always 0 or 1 are infinite
GAINS = {"relu": 2.0, "sigmoid": 4.0 * 2**0.5}  # over the slope at 0: half the units are on, the slope is 1 / 4
START = 3.0  # times the usual size of gated weights: labels enter as single ones, and three factors are multiplied


def drop(v: Tensor, rate: float, noise: torch.Generator | None) -> Tensor:
    """Dropout: a share of the values becomes 0, the others grow so that the mean stays; none without ``noise``."""
    return v if noise is None or not rate else corrupt(v, "masking", rate, noise) / (1 - rate)


@torch.no_grad()
def start_at_mean(units: MeanUnits, a: Tensor, rows: Tensor, activity: float, linear: bool) -> None:
    """Let biases start at the mean of the rows: visible units, of bias ``a`` (1, D), linear or sigmoid, have it as
    theirs, and hidden units have that ``activity`` there.
    """
    mean = rows.mean(0)
    a.copy_(mean if linear else torch.logit(mean, eps=LEAST_MEAN))
    units.b.copy_(math.log(activity / (1 - activity)) - units.W @ mean)


class Perceptron(Network):
    """Hidden layers of one activation and a linear output; ``dropout`` gives a rate for the input of every layer.

    Weights start so that values keep about their size from layer to layer; those of the output start at 0.
    """

    def __init__(
        self, sizes: Sequence[int], activation: str, generator: torch.Generator, dropout: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        self.activation = as_activation(activation)
        self.dropout = [0.0] * (len(sizes) - 1) if dropout is None else list(dropout)
        shapes = [(n_out, n_in) for n_in, n_out in itertools.pairwise(sizes)]
        self.rates = [1.0] * len(shapes)
        gain = GAINS[activation]
        self.W = nn.ParameterList(
            torch.randn(shape, generator=generator) * (gain / sum(shape) ** 0.5) for shape in shapes[:-1]
        )
        self.W.append(torch.zeros(shapes[-1]))
        self.b = nn.ParameterList(torch.zeros(n_out) for n_out, _ in shapes)

    def forward(self, v: Tensor, noise: torch.Generator | None = None) -> Tensor:
        h = v
        for layer, (W, b, rate) in enumerate(zip(self.W, self.b, self.dropout, strict=True)):
            u = torch.addmm(b, drop(h, rate, noise), W.T)
            h = u if layer == len(self.W) - 1 else self.activation.f(u)
        return h

    @torch.no_grad()
    def start_layer(self, layer: int, W: Tensor, b: Tensor, rate: float = 1.0) -> None:
        """Let a hidden layer start from weights that were trained before, and go on with that share of the rate."""
        self.W[layer].copy_(W)
        self.b[layer].copy_(b)
        self.rates[layer] = rate

    def groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The layers, each with its share of the rate; those with none stay as they are."""
        layers = zip(self.W, self.b, self.rates, strict=True)
        return [{"params": [W, b], "learning_rate": learning_rate * rate} for W, b, rate in layers if rate]


@dataclass(eq=False, repr=False, kw_only=True)
class StackedAutoencoderClassifier(NetworkClassifier):
    """A network whose layers are pretrained one by one as denoising auto-encoders, each on the codes of the one below
    (Larochelle et al. 2007, SAA-3; Vincent et al. 2008), then trained as a whole.

    Parameters
    ----------
    n_hidden : units of every hidden layer, sigmoids.
    n_layers : hidden layers.
    noise_level : share of the values that are set to 0 before an auto-encoder sees them; 0 is SAA, more is SDAE.
    activity : mean of the units of the first layer before pretraining, whose weights then start small; None lets them
        start at 1/2, from weights of a size for which layers above still differ from row to row.
    l1 : penalty on the weights of the first layer in pretraining, which makes them 0 where there is only noise.
    pretrain_epochs, pretrain_learning_rate : for each layer.
    pretrained_rate : learning rate of the pretrained layers in fine-tuning, in units of ``learning_rate``, which is
        that of the output.

    The other parameters and the attributes are those of all baselines, see `NetworkClassifier`.  The first
    auto-encoder has sigmoid outputs for ``scaling="unit"``, otherwise linear ones.
    """

    _OPTIMIZER, _SCHEDULE = "adam", "constant"
    _CAPTURES: ClassVar = True

    n_hidden: int = 300
    n_layers: int = 3
    noise_level: float = 0.25
    activity: float | None = None
    l1: float = 0.0
    pretrain_epochs: int | str = "auto"
    pretrain_learning_rate: float = 3e-3
    pretrained_rate: float = 1.0

    def _epochs_before(self, n_steps: int) -> int:
        whole_number(self, "n_hidden", 1)
        fraction_of(self, "noise_level")
        at_least_0(self, "pretrained_rate")
        at_least_0(self, "l1")
        if self.activity is not None and not fraction_of(self, "activity") > 0:
            raise InputError("`activity` must be above 0; use activity=None for units that start at 1/2.")
        return whole_number(self, "n_layers", 1) * epochs_of(self, "pretrain_epochs", n_steps)

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:
        generator = torch.Generator().manual_seed(seed)
        sizes = [train.shape[1], *[self.n_hidden] * self.n_layers, n_classes]
        network = Perceptron(sizes, "sigmoid", generator).to(train.device)
        rows = train
        for layer in range(self.n_layers):
            units = MeanUnits(1, rows.shape[1], self.n_hidden, generator=generator)
            if layer or self.activity is None:
                with torch.no_grad():  # from usual weights, which are smaller, the codes of deep layers hardly differ
                    units.W.copy_(network.W[layer])
            visible = "sigmoid" if layer or self.scaling == "unit" else "linear"  # codes are in [0, 1]
            model = Autoencoder([units], visible).to(rows.device)
            if not layer and self.activity is not None:
                start_at_mean(units, model.a, rows, self.activity, linear=visible == "linear")
            self._denoise(f"layer {layer + 1}", model, rows, seed + layer, report, 0.0 if layer else self.l1)
            network.start_layer(layer, units.W[0], units.b[0], self.pretrained_rate)
            with torch.no_grad():
                rows = model.encode(rows)[0]
        return network

    def _denoise(self, stage: str, model: Autoencoder, rows: Tensor, seed: int, report: Reporter, l1: float) -> None:
        generator = torch.Generator(rows.device).manual_seed(seed)
        units = model.groups[0]
        assert isinstance(units, MeanUnits)

        def loss(batch: Tensor) -> Tensor:
            v = rows[batch]
            error = model.loss(v, seen=corrupt(v, "masking", self.noise_level, generator)).mean()
            return error + l1 * units.W.abs().sum() if l1 else error

        epochs = epochs_of(self, "pretrain_epochs", math.ceil(len(rows) / self.batch_size))
        batches = row_batches(len(rows), self.batch_size, seed, rows.device)
        how = Stage(stage, epochs, self.pretrain_learning_rate)
        self.history_[stage] = how.run(loss, model.parameters(), batches, listener=report, generators=[generator])


@dataclass(eq=False, repr=False, kw_only=True)
class DropoutMLP(NetworkClassifier):
    """A plain network of today, to compare with: two layers of ReLU, dropout, AdamW, and a rate that falls to 0 along
    a cosine.

    Parameters
    ----------
    n_hidden : units of each of the two hidden layers.
    dropout, input_dropout : share of the hidden units, and of the input, left out in training.

    The other parameters and the attributes are those of all baselines, see `NetworkClassifier`.
    """

    _OPTIMIZER, _SCHEDULE = "adamw", "cosine"
    _CAPTURES: ClassVar = True

    n_hidden: int = 500
    dropout: float = 0.5
    input_dropout: float = 0.1
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    n_iter_no_change: int = 30

    def _epochs_before(self, n_steps: int) -> int:  # noqa: ARG002
        whole_number(self, "n_hidden", 1)
        fraction_of(self, "dropout")
        fraction_of(self, "input_dropout")
        return 0

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:  # noqa: ARG002
        sizes = [train.shape[1], self.n_hidden, self.n_hidden, n_classes]
        rates = [self.input_dropout, self.dropout, self.dropout]
        return Perceptron(sizes, "relu", torch.Generator().manual_seed(seed), rates).to(train.device)


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


@dataclass(eq=False, repr=False, kw_only=True)
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
    _CAPTURES: ClassVar = True

    n_hidden: int = 100
    n_factors: int = 100
    input_dropout: float = 0.3
    factor_dropout: float = 0.0
    learning_rate: float = 3e-3

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
