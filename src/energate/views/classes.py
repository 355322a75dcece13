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
from torch import Tensor, nn

from energate.activations import weighted
from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators import EnergyClassifier, ImageEnergyClassifier
from energate.estimators.edge import Array, in_one_pass, log_softmax, logsumexp
from energate.estimators.kinds import kind_of as kind_of_units
from energate.training.classes import ClassEnergies
from energate.training.frozen import FrozenTrunk, can_freeze
from energate.units import HiddenUnits, NetworkUnits
from energate.views.accounts import ClassAccount
from energate.views.graphs import Expansion, Graph, PValues, Scaling, two_best
from energate.views.levels import class_p_values, rejecting, setting, strange, strangeness
from energate.views.view import (
    LABEL,
    SEEN,
    Beside,
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
RECONSTRUCTIONS = Output("reconstructions", "as_", ("label", "column"))
IMAGES, FRAMES = Output("images", "image_", ("column",)), Output("frames", "frame_", ("step", "column"))
FEW_ROWS = 256  # of more, chunks of the plain formulas lie better in the caches
N_FRAMES = 16  # of a picture that is filled in


class ClassView(View):
    """A classifier whose module gives energies and logits of scaled rows by ``scores``, (N, K) each."""

    account, task, moves = ClassAccount, "classify", True

    @property
    def labels(self) -> Sequence[Any]:
        found: list[Any] = self.model.classes_.tolist()
        return found

    @property
    @abstractmethod
    def clamped(self) -> bool:
        """Whether the energy ends at 0 and 1, as with sigmoid outputs."""

    def likings(self, v: Tensor) -> Tensor:
        found: Tensor = self.model.model_.energies(v)
        return found

    def scores(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The energies of scaled rows, and the logits: (N, K) each."""
        found: tuple[Tensor, Tensor] = self.model.model_.scores(v)
        return found

    @abstractmethod
    def reconstruct(self, v: Tensor) -> Tensor:
        """What each class makes of scaled rows: (K, N, D)."""

    def commands(self) -> dict[str, Command]:
        return {
            "predict": Command(
                "What the model says of each row, and the probabilities of `classes`.",
                (PREDICTIONS, PROBABILITIES, *strangeness(self.model)),
                self.said,
                levels=(*rejecting(self.model), *setting(self.model)),
            ),
            "score": Command(
                "How much each class likes each row, and how much any class does; higher is better.",
                (ENERGIES, LIKING, *strangeness(self.model)),
                self.said,
                levels=rejecting(self.model),
            ),
            "explain": Command(
                "Everything that the model says of each row: energies, probabilities, reconstructions.",
                (
                    *(ENERGIES, DECISION, PROBABILITIES, PREDICTIONS, SEEN, RECONSTRUCTIONS, LIKING),
                    *strangeness(self.model),
                ),
                partial(self.said, reconstructions=True),
                alone=True,
                n_values=(1 + len(self.labels)) * self.n_seen,
            ),
            **self.restoring(),
        }

    @abstractmethod
    def restoring(self) -> dict[str, Command]:
        """What it does with rows that are pictures: denoise and inpaint, if it can."""

    def said(self, X: Array, *, reconstructions: bool = False) -> dict[str, Any]:
        """What follows from the energies, the logits and, if they are wanted, the reconstructions."""

        def one_pass(v: Tensor) -> dict[str, Tensor]:
            v = v.clamp(0, 1) if self.clamped else v
            energies, decision = self.scores(v)
            found = {"energies": energies, "decision": decision}
            # (K, N, D) to (N, K, D)
            return found | ({"reconstructions": self.reconstruct(v).movedim(0, 1)} if reconstructions else {})

        found: dict[str, Any] = in_one_pass(X, self.scaled, self.model.model_.B, one_pass, self.model.precision)
        found["probabilities"] = np.exp(log_softmax(found["decision"]))
        found["predictions"] = self.model.classes_[found["decision"].argmax(1)]
        found["liking"] = logsumexp(found["energies"])
        found |= strange(self.model, found["liking"])
        if reconstructions:
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
            return self.course_of_all(X)
        if isinstance(of, bool) or not isinstance(of, int | np.integer) or not 0 <= of < n_classes:
            raise InputError(f"`of` must be the number of a class, from 0 to {n_classes - 1}; got {of!r}.")
        return self.course_of(int(of))

    @abstractmethod
    def course_of(self, k: int) -> Course:
        """The field of class k."""

    @abstractmethod
    def course_of_all(self, X: Array) -> Course:
        """The field that moves a row X (1, d) if no class is named: of its most probable class, or of all together."""

    def course_of_best(self, X: Array) -> Course:
        """The field of the most probable class of a row X (1, d)."""
        return self.course_of(int(self.said(X)["decision"].argmax()))

    def graph(self) -> Graph:
        module, model = ClassGraph(self), self.model

        def reference(X: Array) -> dict[str, Any]:
            found = self.said(X)
            sets = {"class_p_values": class_p_values(model, found["decision"])} if model.calibration_log_p_.size else {}
            return {**found, **sets, "label": found["decision"].argmax(1)}

        def slack(outputs: dict[str, Any], room: float) -> dict[str, Array]:
            energies = {"p_value": outputs["liking"], "class_p_values": log_softmax(outputs["decision"])}
            return {name: its.slack(energies[name], room) for name, its in module.p_values.items()}

        outputs = ("energies", "decision", "probabilities", "label", *module.p_values)
        return Graph(module, {"X": self.n_features}, outputs, reference, two_best, slack=slack)


class ClassGraph(nn.Module):
    """Rows to energies, decision values, probabilities, the number of the class, and p-values that there are."""

    def __init__(self, view: ClassView) -> None:
        super().__init__()
        alone = copy.copy(view)
        alone.model = copy.copy(view.model)
        alone.model.model_ = self.module = copy.deepcopy(view.model.model_)
        self.seeing = nn.Identity() if view.cells is None else Expansion(view.cells)
        self.scaling, self.view = Scaling(view.model.scaler_, view.clamped), alone
        self.p_values: dict[str, PValues] = {"p_value": PValues(view.model.held_out_)}
        if view.model.calibration_log_p_.size:
            self.p_values["class_p_values"] = PValues(view.model.class_reference())
        self.counting = nn.ModuleList(self.p_values.values())

    def forward(self, X: Tensor) -> tuple[Tensor, ...]:
        v = self.scaling(self.seeing(X))
        energies, decision = self.module.scores(v)
        compared = torch.logsumexp(energies, 1), torch.log_softmax(decision, 1)
        p_values = [count(values) for count, values in zip(self.counting, compared, strict=False)]
        return energies, decision, torch.softmax(decision, 1), decision.argmax(1), *p_values


def _build(device: str, random_state: int, epochs: int | None, **options: Any) -> EnergyClassifier:
    stages: dict[str, Any] = {} if epochs is None else {"pretrain_epochs": epochs, "max_epochs": epochs}
    return EnergyClassifier(device=device, random_state=random_state, **stages, **options)


@register
class EnergyClassifierView(ClassView):
    """One auto-encoder, or several whose energies add, for each class."""

    estimator, takes_cells = EnergyClassifier, True
    trained = Trained("classify", ("units", "n_hidden", "generative_weight", "class_weight", "explainable"), _build)
    frozen: FrozenTrunk | None = None

    def freeze(self) -> None:
        if can_freeze(self.model.model_):
            self.frozen = FrozenTrunk(self.model.model_)

    def scores(self, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.frozen is None or len(v) > FEW_ROWS:
            return super().scores(v)
        return self.frozen.scores(v)

    @staticmethod
    def trains_by_steps(estimator: Any) -> bool:
        return not kind_of_units(estimator.units).remembers

    @property
    def clamped(self) -> bool:
        return bool(self.model.model_.autoencoders[0].visible.name == "sigmoid")

    def about(self) -> dict[str, Any]:
        units = self.model.units if isinstance(self.model.units, str) else "a function"
        scaling = kind_of_units(self.model.units).settled(self.model).scaling
        return {"units": units, "n_members": self.model.model_.n_members, "scaling": scaling}

    def restoring(self) -> dict[str, Command]:
        return {}

    def reconstruct(self, v: Tensor) -> Tensor:
        return reconstruct_classes(self.model.model_, v)

    def course_of_all(self, X: Array) -> Course:
        return self.course_of_best(X)

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


def _build_of_images(device: str, random_state: int, epochs: int | None, **options: Any) -> ImageEnergyClassifier:
    more: dict[str, Any] = {} if epochs is None else {"max_epochs": epochs}
    return ImageEnergyClassifier(device=device, random_state=random_state, **more, **options)


@register
class ImageEnergyClassifierView(ClassView):
    """One network with a head of hidden units for each class."""

    estimator = ImageEnergyClassifier
    clamped = False
    _OPTIONS = ("augment", "symmetry", "channels", "denoising_weight", "shared_channels")
    trained = Trained("images", _OPTIONS, _build_of_images)

    def about(self) -> dict[str, Any]:
        height, width, channels = self.model.model_.shape
        shape = [height, width, channels][: 2 if channels == 1 else 3]
        scaler, fits = self.model.scaler_, self.model.scaling in ("image", "unit")
        limits = [float(scaler.offset.min()), float((scaler.offset + scaler.size).max())] if fits else None
        told = {"level_told": self.listens, "noise_levels": [float(x) for x in self.model.noise_levels]}
        return {
            "units": "a network",
            "n_members": 1,
            "scaling": self.model.scaling,
            "shape": shape,
            "range": limits,
            "familiarity": self.model.model_.familiarity is not None,
            **(told if self.model.denoising_weight else {}),
        }

    @property
    def listens(self) -> bool:
        """Whether the model can be told the noise level."""
        return self.model.model_.finder is not None

    def flat(self, X: Any) -> Any:
        return self.model._flat(X)

    def middle(self) -> Array:
        return self.scaled(self.model.mean_[None])[0]

    def restoring(self) -> dict[str, Command]:
        if not self.model.denoising_weight:  # its field was not made for this
            return {}
        height, width, _ = self.model.model_.shape
        level = (Beside("level", 1, needed=False),) if self.listens else ()
        return {
            "denoise": Command(
                "Each picture without its noise; `level` is that of the noise, for a model that is told.",
                (IMAGES, *strangeness(self.model)),
                self.denoised,
                level,
                alone=True,
                n_values=self.n_features,
            ),
            "inpaint": Command(
                "Each picture with the pixels filled in where `mask` is 1, and how they came about.",
                (IMAGES, FRAMES, *strangeness(self.model)),
                self.filled,
                (Beside("mask", height * width, needed=True),),
                alone=True,
                n_values=(N_FRAMES + 1) * self.n_features,
            ),
        }

    def denoised(self, X: Array, level: Any = None) -> dict[str, Any]:
        """Rows without their noise, and how strange they are then; ``level`` (n, 1) is that of each row's."""
        if level is None:
            images = self.model.denoise(X)
        else:
            levels = np.asarray(level, dtype=np.float64)[:, 0]
            images = np.empty_like(X)
            for each in np.unique(levels):
                images[levels == each] = self.model.denoise(X[levels == each], level=float(each))
        return {"images": images, **strange(self.model, self.model.score_samples(images))}

    def filled(self, X: Array, mask: Any) -> dict[str, Any]:
        """Rows with the pixels filled in where ``mask`` (n, h * w) is above 0, and the stages on the way there."""
        height, width, channels = self.model.model_.shape
        unknown = np.asarray(mask, dtype=np.float64).reshape(-1, height, width) > 0
        # The shape says which axis a mask is of; a row of a table does not.
        stages: list[Array] = []
        images = self.model.inpaint(X.reshape(-1, height, width, channels), unknown, tell=stages.append)
        images = images.reshape(len(X), -1)
        stages = stages or [images]
        kept = np.linspace(0, len(stages) - 1, N_FRAMES - 1).round().astype(int)  # few stages last longer
        frames = np.stack([*(stages[i].reshape(len(X), -1) for i in kept), images], 1)  # (n, T, d)
        return {"images": images, "frames": frames, **strange(self.model, self.model.score_samples(images))}

    def reconstruct(self, v: Tensor) -> Tensor:
        found: Tensor = self.model.model_.reconstruct(v)
        return found

    def course_of_all(self, X: Array) -> Course:
        if not self.model.denoising_weight:
            return self.course_of_best(X)
        network = self.model.model_  # training has made the field of all classes together, and no other
        return Course(network.together(familiar=False), 0, float(network.scale().detach()), 0.0, None)

    def course_of(self, k: int) -> Course:
        network = self.model.model_
        scale, constant = network.scale().detach(), network.B.detach()[k]
        return Course(network.alone(k), 0, float(scale), float(constant), k)

    def fields(self, rows: dict[str, Array], seed: int) -> Iterator[Field]:
        v = torch.as_tensor(self.scaled(rows["X"]))
        # On the CPU: vmap, which the check takes, does not know the order of channels that is quick on GPUs.
        network = self.model.model_
        part, together = in_double(network.autoencoder).cpu(), in_double(network.together()).cpu()
        yield Field(f"{kind_of(part)}, all classes, what they do not share", part, v)
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
