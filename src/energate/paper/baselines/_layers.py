"""Feed-forward networks: `StackedAutoencoderClassifier` (SAA-3) and `DropoutMLP`."""

from typing import Any

import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators.network import Network, NetworkClassifier, at_least_0, epochs_of, fraction_of, whole_number
from energate.estimators.progress import Reporter
from energate.paper.baselines._perceptron import Perceptron, start_at_mean
from energate.training import corrupt
from energate.units import MeanUnits


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

    def __init__(
        self,
        *,
        n_hidden: int = 300,
        n_layers: int = 3,
        noise_level: float = 0.25,
        activity: float | None = None,
        l1: float = 0.0,
        pretrain_epochs: int | str = "auto",
        pretrain_learning_rate: float = 3e-3,
        pretrained_rate: float = 1.0,
        max_epochs: int | str = "auto",
        learning_rate: float = 1e-3,
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
        self.n_layers = n_layers
        self.noise_level = noise_level
        self.activity = activity
        self.l1 = l1
        self.pretrain_epochs = pretrain_epochs
        self.pretrain_learning_rate = pretrain_learning_rate
        self.pretrained_rate = pretrained_rate

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

        self._minimise(stage, loss, model, rows, "pretrain_epochs", self.pretrain_learning_rate, seed, report)


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

    def __init__(
        self,
        *,
        n_hidden: int = 500,
        dropout: float = 0.5,
        input_dropout: float = 0.1,
        max_epochs: int | str = "auto",
        learning_rate: float = 2e-3,
        weight_decay: float = 1e-2,
        batch_size: int = 100,
        early_stopping: bool = True,
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 30,
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
        self.dropout = dropout
        self.input_dropout = input_dropout

    def _epochs_before(self, n_steps: int) -> int:  # noqa: ARG002
        whole_number(self, "n_hidden", 1)
        fraction_of(self, "dropout")
        fraction_of(self, "input_dropout")
        return 0

    def _start(self, train: Tensor, n_classes: int, seed: int, report: Reporter) -> Network:  # noqa: ARG002
        sizes = [train.shape[1], self.n_hidden, self.n_hidden, n_classes]
        rates = [self.input_dropout, self.dropout, self.dropout]
        return Perceptron(sizes, "relu", torch.Generator().manual_seed(seed), rates).to(train.device)
