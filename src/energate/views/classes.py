"""The views of classifiers by energy: `EnergyClassifier`, and `ImageEnergyClassifier` over a network.

A class of an `EnergyClassifier` is several auto-encoders (parts and members) whose energies add with positive weights.
Together they are one auto-encoder again: its pre-output is the weighted mean of theirs, its reconstruction what the
output activation makes of it, and its vector field the gradient of the class's energy, divided by the sum of the
weights.  `class_autoencoder` builds it.
"""

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp, softmax
from torch import Tensor, nn

from energate.activations import weighted
from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators import EnergyClassifier, ImageEnergyClassifier
from energate.estimators.edge import Array, in_one_pass
from energate.estimators.kinds import kind_of as kind_of_units
from energate.training.classes import ClassEnergies
from energate.units import HiddenUnits, NetworkUnits
from energate.views.accounts import ClassAccount
from energate.views.graphs import Expansion, Graph, Scaling, two_best
from energate.views.view import (
    LABEL,
    Command,
    Course,
    Field,
    Output,
    Trained,
    View,
    drawn,
    in_double,
    kind_of,
    register,
)

PREDICTIONS = Output("predictions", "prediction", kind=LABEL)
PROBABILITIES = Output("probabilities", "p_", ("label",))
ENERGIES, LIKING = Output("energies", "energy_", ("label",)), Output("liking", "liking")
DECISION = Output("decision", "decision_", ("label",))
SEEN = Output("seen", "seen_", ("column",))
RECONSTRUCTIONS = Output("reconstructions", "as_", ("label", "column"))


class ClassView(View):
    """A classifier whose module gives ``logits`` and ``energies`` (N, K) of scaled rows."""

    account, task, moves = ClassAccount, "classify", True

    @property
    def labels(self) -> Sequence[Any]:
        found: list[Any] = self.model.classes_.tolist()
        return found

    @property
    @abstractmethod
    def clamped(self) -> bool:
        """Whether the energy ends at 0 and 1, as with sigmoid outputs."""

    @abstractmethod
    def logits(self, v: Tensor) -> Tensor:
        """Calibrated energies, less a term that all classes share: (N, K)."""

    @abstractmethod
    def reconstruct(self, v: Tensor) -> Tensor:
        """What each class makes of scaled rows: (K, N, D)."""

    def commands(self) -> dict[str, Command]:
        return {
            "predict": Command(
                "What the model says of each row, and the probabilities of `classes`.",
                (PREDICTIONS, PROBABILITIES),
                partial(self.said, ("logits",)),
            ),
            "score": Command(
                "How much each class likes each row, and how much any class does; higher is better.",
                (ENERGIES, LIKING),
                partial(self.said, ("energies",)),
            ),
            "explain": Command(
                "Everything that the model says of each row: energies, probabilities, reconstructions.",
                (ENERGIES, DECISION, PROBABILITIES, PREDICTIONS, SEEN, RECONSTRUCTIONS, LIKING),
                partial(self.said, ("energies", "logits", "reconstructions")),
                alone=True,
                n_values=(1 + len(self.labels)) * self.n_seen,
            ),
        }

    def said(self, wanted: Sequence[str], X: Array) -> dict[str, Any]:
        """What follows from the energies, the logits and the reconstructions, as far as they are wanted."""
        module = self.model.model_
        compute = {
            "energies": module.energies,
            "logits": self.logits,
            "reconstructions": lambda v: self.reconstruct(v).movedim(0, 1),  # (N, K, D)
        }

        def one_pass(v: Tensor) -> dict[str, Tensor]:
            v = v.clamp(0, 1) if self.clamped else v
            return {name: compute[name](v) for name in wanted}

        found: dict[str, Any] = in_one_pass(X, self.scaled, module.B, one_pass)
        if "logits" in found:
            found["decision"] = found.pop("logits")
            found["probabilities"] = softmax(found["decision"], 1)
            found["predictions"] = self.model.classes_[found["decision"].argmax(1)]
        if "energies" in found:
            found["liking"] = logsumexp(found["energies"], 1)
        if "reconstructions" in found:
            found["seen"] = self.seen(X)
            found["reconstructions"] = self.model.scaler_.undo(found["reconstructions"])
        return found

    def draw(self, n_rows: int, seed: int) -> dict[str, Array]:
        found = drawn(n_rows, seed, self.model.scaling in ("unit", "image"), X=self.model.scaler_)["X"]  # (n, D)
        return {"X": found if self.cells is None else self.cells.drawn(found, np.random.RandomState(seed))}

    def checked(self) -> str:
        return "the auto-encoders of every class, part and member"

    def course(self, X: Array, of: int | None) -> Course:
        n_classes = len(self.labels)
        if of is None:
            of = int(self.said(("logits",), X)["decision"].argmax())
        elif isinstance(of, bool) or not isinstance(of, int | np.integer) or not 0 <= of < n_classes:
            raise InputError(f"`of` must be the number of a class, from 0 to {n_classes - 1}; got {of!r}.")
        return self.course_of(int(of))

    @abstractmethod
    def course_of(self, k: int) -> Course:
        """The field of class k."""

    def graph(self) -> Graph:
        def reference(X: Array) -> dict[str, Any]:
            found = self.said(("energies", "logits"), X)
            return {**found, "label": found["decision"].argmax(1)}

        outputs = ("energies", "decision", "probabilities", "label")
        return Graph(ClassGraph(self), {"X": self.n_features}, outputs, reference, two_best)


class ClassGraph(nn.Module):
    """Rows to energies, decision values, probabilities and the number of the class."""

    def __init__(self, view: ClassView) -> None:
        super().__init__()
        alone = copy.copy(view)
        alone.model = copy.copy(view.model)
        alone.model.model_ = self.module = copy.deepcopy(view.model.model_)
        self.seeing = nn.Identity() if view.cells is None else Expansion(view.cells)
        self.scaling, self.view = Scaling(view.model.scaler_, view.clamped), alone

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        v = self.scaling(self.seeing(X))
        decision = self.view.logits(v)
        return self.module.energies(v), decision, torch.softmax(decision, 1), decision.argmax(1)


def _build(device: str, random_state: int, epochs: int | None, **options: Any) -> EnergyClassifier:
    stages: dict[str, Any] = {} if epochs is None else {"pretrain_epochs": epochs, "max_epochs": epochs}
    return EnergyClassifier(device=device, random_state=random_state, **stages, **options)


@register
class EnergyClassifierView(ClassView):
    """One auto-encoder, or several whose energies add, for each class."""

    estimator, takes_cells = EnergyClassifier, True
    trained = Trained("classify", ("units",), _build)

    @property
    def clamped(self) -> bool:
        return bool(self.model.model_.autoencoders[0].visible.name == "sigmoid")

    def about(self) -> dict[str, Any]:
        units = self.model.units if isinstance(self.model.units, str) else "a function"
        scaling = kind_of_units(self.model.units).settled(self.model).scaling
        return {"units": units, "n_members": self.model.model_.n_members, "scaling": scaling}

    def logits(self, v: Tensor) -> Tensor:
        found: Tensor = self.model.model_.logits(v)
        return found

    def reconstruct(self, v: Tensor) -> Tensor:
        return reconstruct_classes(self.model.model_, v)

    def course_of(self, k: int) -> Course:
        energies: ClassEnergies = self.model.model_
        only = energies.autoencoders[0]
        if len(energies.autoencoders) == energies.n_members == 1 and _is_network(only):  # which cannot be taken apart
            return Course(only, k, float(energies.beta[0, 0]), float(energies.B.detach()[0, k]), k)
        merged, scale, constant = class_autoencoder(energies, k)
        return Course(merged, 0, scale, constant, k)

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        energies: ClassEnergies = self.model.model_
        v = torch.as_tensor(self.scaled(rows["X"]))
        for part in energies.autoencoders:
            kind = kind_of(part)
            if _is_network(part) or part.n_members < part.n_models:  # what shares layers is looked at together
                yield Field(f"{kind}, all classes", in_double(part), v)
                continue
            for c in range(energies.n_members):
                of_member = f", member {c}" if energies.n_members > 1 else ""
                for k, name in enumerate(self.labels):
                    alone = part.select(c * energies.n_classes + k)
                    yield Field(f"class {name}{of_member}, {kind}", in_double(alone), v)


@register
class ImageEnergyClassifierView(ClassView):
    """One network with a head of hidden units for each class."""

    estimator = ImageEnergyClassifier
    clamped = False

    def about(self) -> dict[str, Any]:
        height, width, channels = self.model.model_.shape
        shape = [height, width, channels][: 2 if channels == 1 else 3]
        return {"units": "a network", "n_members": 1, "scaling": self.model.scaling, "shape": shape}

    def flat(self, X: Any) -> Any:
        return self.model._flat(X)

    def logits(self, v: Tensor) -> Tensor:
        found: Tensor = self.model.model_(v)
        return found

    def reconstruct(self, v: Tensor) -> Tensor:
        found: Tensor = self.model.model_.autoencoder.reconstruct(v)
        return found

    def course_of(self, k: int) -> Course:
        network = self.model.model_
        scale, constant = network.log_beta.detach().exp(), network.B.detach()[k]
        return Course(network.autoencoder, k, float(scale), float(constant), k)

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        v = torch.as_tensor(self.scaled(rows["X"]))
        # On the CPU: vmap, which the check takes, does not know the order of channels that is quick on GPUs.
        network = self.model.model_
        part, together = in_double(network.autoencoder).cpu(), in_double(network.together()).cpu()
        yield Field(f"{kind_of(part)}, all classes", part, v)
        yield Field(f"{kind_of(together)}, all classes together", together, v)


# --- a class as one auto-encoder ---------------------------------------------------------------------------------


def part_weights(model: ClassEnergies) -> Tensor:
    """How much the energy of each member's parts counts in that of a class: (C, P), none negative."""
    return model.share.unsqueeze(1) * model.beta


def reconstruct_classes(model: ClassEnergies, v: Tensor) -> Tensor:
    """What each class's auto-encoder makes of scaled rows (N, D): (K, N, D)."""
    weights = part_weights(model)
    total = torch.zeros(())
    for p, part in enumerate(model.autoencoders):
        preoutput = part.preoutput(v).unflatten(0, (model.n_members, model.n_classes))  # (C, K, N, D)
        total = total + torch.tensordot(weights[:, p], preoutput, 1)
    return model.autoencoders[0].visible.f(total / weights.sum())


def class_autoencoder(model: ClassEnergies, k: int) -> tuple[Autoencoder, float, float]:
    """Class k as one auto-encoder, with the scale and constant of its energy.

    ``scale * autoencoder.energy(v) + constant`` is the calibrated energy of the class.
    """
    if not 0 <= k < model.n_classes:
        raise InputError(f"The class must be a number from 0 to {model.n_classes - 1}; got {k}.")
    weights = part_weights(model)
    scale, constant = float(weights.sum()), float(model.share @ model.B.detach()[:, k])
    of_class = [part.select([c * model.n_classes + k for c in range(model.n_members)]) for part in model.autoencoders]
    groups: list[HiddenUnits] = []
    a = torch.zeros_like(model.autoencoders[0].a[:1])
    for (c, p), weight in np.ndenumerate((weights / weights.sum()).tolist()):
        if weight > 0:  # a member may count for nothing
            alone = of_class[p].select(int(c))
            a = a + weight * alone.a.detach()
            groups += [_weighted(group, float(weight)) for group in alone.groups]
    skips = [part.skip for part in model.autoencoders]
    shares = weights.sum(0) / weights.sum()  # of the parts
    skip = sum(share * each for share, each in zip(shares, skips, strict=True) if each is not None)
    merged = Autoencoder(groups, model.autoencoders[0].visible, skip if isinstance(skip, Tensor) else None).to(a)
    with torch.no_grad():
        merged.a.copy_(a)
    return merged, scale, constant


def _weighted(units: HiddenUnits, weight: float) -> HiddenUnits:
    """Units whose energies and decoded vectors count with a weight above 0; they are changed in place."""
    units.activation = weighted(units.activation, weight)
    return units


def _is_network(autoencoder: Autoencoder) -> bool:
    return any(isinstance(group, NetworkUnits) for group in autoencoder.groups)
