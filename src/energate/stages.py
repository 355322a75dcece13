"""Class-specific energy models, and the three stages that train them: pretrain, calibrate, fine-tune.

K classes are K models of one or several auto-encoders, whose energies add (`eqn:gae:classification`, `GAES_eq`):

    P(z = k | v) = softmax_k( beta * sum over parts of E_k(v) + B_k )

The stages work on tensors and can be used without the estimators.  A batch holds rows of every class, (K, B): model
k reconstructs its own rows, and all rows together give the cross-entropy, weighted back to the frequencies of the
classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from energate.autoencoder import Autoencoder
from energate.calibration import calibrate, calibrate_scale
from energate.errors import InputError
from energate.training import History, Progress, class_batches, corrupt, minimise


class ClassEnergies(nn.Module):
    """K class models: auto-encoders with K models each, whose energies add, and a bias per class."""

    def __init__(self, parts: Sequence[Autoencoder]) -> None:
        super().__init__()
        if not parts or len({(part.n_models, part.width) for part in parts}) != 1:
            raise InputError("`parts` must be auto-encoders of the same width, each with one model per class.")
        self.parts = nn.ModuleList(parts)
        self.B = nn.Parameter(parts[0].a.new_zeros(parts[0].n_models))
        self.register_buffer("beta", parts[0].a.new_ones(()))
        self.beta: Tensor

    @property
    def autoencoders(self) -> list[Autoencoder]:
        """The parts."""
        return list(self.parts)  # type: ignore[arg-type]

    def relative_energies(self, v: Tensor) -> Tensor:
        """How much each class likes each row, less a term that all classes share: (N, K), higher is better."""
        return torch.stack([part.relative_energy(v) for part in self.autoencoders]).sum(0).T

    def energies(self, v: Tensor) -> Tensor:
        """How much each class likes each row, quadratic or entropy term included: (N, K), higher is better."""
        return torch.stack([part.energy(v) for part in self.autoencoders]).sum(0).T

    def logits(self, v: Tensor) -> Tensor:
        """Calibrated energies whose softmax is P(z | v): (N, K)."""
        return self.beta * self.relative_energies(v) + self.B

    def calibrated_energies(self, v: Tensor) -> Tensor:
        """Calibrated energies with no term left out: (N, K), higher is better."""
        return self.beta * self.energies(v) + self.B

    def encode(self, v: Tensor) -> Tensor:
        """Hidden activations of all classes and parts, side by side: (N, K * M)."""
        h = torch.cat([part.encode(v) for part in self.autoencoders], -1)  # (K, N, M)
        return h.movedim(0, 1).flatten(1)


Report = Callable[[str, Progress], bool | None]


@dataclass(frozen=True)
class Rows:
    """Training or validation rows on the model's device: v (N, D), labels (N,) and weights (N,) of mean 1."""

    v: Tensor
    labels: Tensor
    weight: Tensor


def rows_per_class(batch_size: int, n_classes: int) -> int:
    """A batch holds as many rows of every class: its size divided by the classes, but at least 32."""
    return max(32, batch_size // n_classes)


def validation_loss(model: ClassEnergies, rows: Rows) -> Tensor:
    """Log-loss of the rows after calibrating the biases on them; the model's own biases play no part."""
    energies = model.relative_energies(rows.v).double()
    B = calibrate(energies, rows.labels, rows.weight)
    losses = F.cross_entropy(energies + B, rows.labels, reduction="none")
    return (rows.weight * losses).mean()


@dataclass(frozen=True)
class Training:
    """How the stages step: what `minimise` and `corrupt` take."""

    batch_size: int = 100
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    noise: str = "gaussian"
    noise_level: float = 0.3
    patience: int | None = 10
    seed: int = 0


def pretrain(
    model: ClassEnergies,
    rows: Rows,
    training: Training,
    epochs: int,
    valid: Rows | None = None,
    report: Report | None = None,
) -> History:
    """Train every class's auto-encoders to reconstruct the rows of that class from noisy copies.

    With validation rows the epoch with the best calibrated log-loss is kept: more than the reconstruction, the contrast
    between classes says when to stop.
    """
    generator = torch.Generator(rows.v.device).manual_seed(training.seed)

    def loss(batch: Tensor) -> Tensor:  # (K, B) -> (K,)
        v = rows.v[batch]
        seen = corrupt(v, training.noise, training.noise_level, generator)
        losses = torch.stack([part.loss(v, seen=seen) for part in model.autoencoders]).sum(0)  # (K, B)
        return (rows.weight[batch] * losses).mean(-1)

    parameters = [parameter for part in model.autoencoders for parameter in part.parameters()]
    return _run("pretrain", loss, parameters, model, rows, training, epochs, "constant", valid, report)


def set_biases(model: ClassEnergies, rows: Rows, scale: bool = False) -> None:
    """Calibrate: the class biases B, and with ``scale`` also beta, by maximum likelihood on the given rows."""
    with torch.no_grad():
        energies = model.relative_energies(rows.v)
        beta, B = 1.0, None
        if scale:
            beta, B = calibrate_scale(energies, rows.labels, rows.weight)
        model.beta.fill_(beta)
        model.B.copy_(calibrate(energies, rows.labels, rows.weight) if B is None else B)


def fine_tune(
    model: ClassEnergies,
    rows: Rows,
    training: Training,
    epochs: int,
    generative_weight: float,
    valid: Rows | None = None,
    report: Report | None = None,
) -> History:
    """Train weights and biases by cross-entropy, plus ``generative_weight`` times the denoising loss per column."""
    generator = torch.Generator(rows.v.device).manual_seed(training.seed + 1)
    n_classes, width = len(model.B), rows.v.shape[1]
    classes = torch.arange(n_classes, device=rows.v.device)
    share = torch.bincount(rows.labels, minlength=n_classes).to(rows.v)
    share = share / share.mean()  # class frequencies: every class has as many rows in a batch

    def loss(batch: Tensor) -> Tensor:
        v, labels = rows.v[batch], classes.repeat_interleave(batch.shape[1])  # (K, B, D), (K * B,)
        seen = corrupt(v, training.noise, training.noise_level, generator)
        weight = share.unsqueeze(1) * rows.weight[batch]  # (K, B)
        cross_entropy = F.cross_entropy(model.logits(seen.flatten(0, 1)), labels, reduction="none")
        total = (weight.flatten() * cross_entropy).mean()
        if generative_weight:
            losses = torch.stack([part.loss(v, seen=seen) for part in model.autoencoders]).sum(0)  # (K, B)
            total = total + generative_weight * (weight * losses).mean() / width
        return total

    return _run("fine-tune", loss, list(model.parameters()), model, rows, training, epochs, "cosine", valid, report)


def _run(
    name: str,
    loss: Callable[[Tensor], Tensor],
    parameters: list[nn.Parameter],
    model: ClassEnergies,
    rows: Rows,
    training: Training,
    epochs: int,
    schedule: str,
    valid: Rows | None,
    report: Report | None,
) -> History:
    n_classes = len(model.B)
    per_class = rows_per_class(training.batch_size, n_classes)
    return minimise(
        loss,
        parameters,
        class_batches(rows.labels, n_classes, per_class, training.seed, rows.v.device),
        epochs=epochs,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        schedule=schedule,
        validate=None if valid is None else lambda: validation_loss(model, valid),
        patience=None if valid is None else training.patience,
        callback=None if report is None else lambda progress: report(name, progress),
    )
