"""The kinds of `EnergyClassifier`: what ``units`` builds, and how it is trained.

`PerClass` are the paper's: one auto-encoder per class, in three stages.  `Trunk` is the default for tables: layers that
the classes share, a head of units for each class, members with folds of their own.  `Memory` is trained by nothing: the
rows of a class are its units.
"""

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators import edge
from energate.estimators.edge import Array, Examples
from energate.estimators.kind import Kind, Round, given_weights, is_auto, visible_of
from energate.training import History
from energate.training.class_memories import blank, remember_classes
from energate.training.classes import (
    FINE_TUNE_ROWS,
    PRETRAIN_ROWS,
    ClassEnergies,
    LabelledRows,
    Stages,
    Training,
    rows_per_class,
    start_sharp,
    train_classes,
)
from energate.training.trunk import TrunkTraining, train_trunk
from energate.trunk import TrunkUnits

#: How much of the denoising loss the members keep: on small data, on large, and with many columns.  On large data one
#: member goes without: what helps with few rows costs up to 7 points of accuracy with many.
AUTO_WEIGHTS, LARGE_WEIGHTS, WIDE_WEIGHTS = (0.0, 0.0, 0.03, 0.1), (0.1, 0.0), (0.1,)
LARGE, WIDE = 2_000_000, 2000
EXPLAINABLE_WEIGHT, EXPLAINABLE_NOISE = 10.0, 0.6  # where auto-encoders are to reconstruct after fine-tuning, too
FEW_COLUMNS = 8  # up to so many, the second of the default members starts with `start_sharp`


# --- the paper's ---------------------------------------------------------------------------------------------------


class PerClass(Kind):
    """One auto-encoder per class, or several whose energies add: pretrained, calibrated, fine-tuned."""

    whole = False
    remembers = False
    least_valid = 50  # a smaller split is too small to choose epochs and biases by
    auto: ClassVar[dict[str, Any]] = {
        "scaling": "standard", "noise_level": 0.3, "learning_rate": 3e-3, "weight_decay": 0.0, "batch_size": 100,
    }  # fmt: skip

    def weights(self, estimator: Any, n_rows: int) -> Array:
        if not is_auto(estimator.generative_weight):
            return given_weights(estimator)
        if estimator.explainable:
            return np.array([EXPLAINABLE_WEIGHT])
        if callable(estimator.units):
            return np.zeros(1)
        width = estimator.cells_.width
        if width > WIDE:
            return np.array(WIDE_WEIGHTS)
        return np.array(AUTO_WEIGHTS if n_rows * width * len(estimator.classes_) <= LARGE else LARGE_WEIGHTS)

    def breadth(self, estimator: Any, n_rows: int) -> int:  # noqa: ARG002
        return 0

    def skip(self, estimator: Any, rows: Examples) -> Array:  # noqa: ARG002
        return np.empty(0)

    def build(self, estimator: Any, generator: torch.Generator) -> ClassEnergies:
        n_classes, width = len(estimator.classes_), estimator.cells_.width
        if not callable(estimator.units):
            edge.check_choices(estimator, reading=("sum", "shared"))
        auto = int(np.clip(min(width, 400_000 // width), 64, 200))
        groups = edge.build_units(estimator, len(estimator.generative_weights_) * n_classes, width, auto, generator)
        parts = (
            [groups] if callable(estimator.units) or estimator.reading == "shared" else [[group] for group in groups]
        )
        return ClassEnergies([Autoencoder(part, visible_of(estimator)) for part in parts], n_classes)

    def start(self, estimator: Any, rows: Examples, generator: torch.Generator) -> None:
        if self._has_sharp_member(estimator):
            start_sharp(estimator.model_, estimator.scaler_(rows.X), rows.weight, generator)

    def _has_sharp_member(self, estimator: Any) -> bool:
        """Whether one of the default members starts with `start_sharp`."""
        default = is_auto(estimator.generative_weight) and len(estimator.generative_weights_) > 1
        return default and estimator.units != "covariance" and estimator.cells_.width <= FEW_COLUMNS

    def _stages(self, estimator: Any, counts: Tensor, seed: int, epochs: int | None, times: float = 1.0) -> Stages:
        """How training goes, by the parameters and the numbers of rows of the classes."""
        asked, model = self.settled(estimator), estimator.model_
        if asked.explainable:
            asked.start_scale = None  # the small one asks for energies that are too steep to denoise
            asked.noise_level = EXPLAINABLE_NOISE if is_auto(estimator.noise_level) else asked.noise_level
        sizes = (rows_per_class(asked.batch_size, model.n_classes, least) for least in (PRETRAIN_ROWS, FINE_TUNE_ROWS))
        steps = [math.ceil(int(counts.max()) / size) for size in sizes]
        n_pretrain = edge.auto_epochs(asked.pretrain_epochs, steps[0], 200, 10) if epochs is None else epochs
        n_fine_tune = edge.auto_epochs(asked.max_epochs, steps[1], 600, 20) if epochs is None else epochs
        if times > 1 and is_auto(asked.pretrain_epochs):  # as many passes through all rows
            n_pretrain = math.ceil(times * n_pretrain)
        if times > 1 and is_auto(asked.max_epochs):
            n_fine_tune = math.ceil(times * n_fine_tune)
        noise = "noise_level" if asked.fine_tune_noise_level is None else "fine_tune_noise_level"
        training = Training(
            n_pretrain,
            asked.batch_size,
            learning_rate=edge.per_member(asked, "learning_rate", model.n_members),
            weight_decay=edge.per_member(asked, "weight_decay", model.n_members),
            noise=asked.noise,
            noise_level=edge.per_member(asked, "noise_level", model.n_members),
            patience=asked.n_iter_no_change,
            validate_every=asked.validate_every,
            optimizer=asked.optimizer,
            learn_scale=asked.learn_scale,
            seed=seed,
        )
        rate, level = (edge.per_member(asked, name, model.n_members) for name in ("fine_tune_learning_rate", noise))
        held_out = asked.early_stopping and asked.learn_scale and epochs is None
        return Stages(
            training,
            replace(training, epochs=n_fine_tune, learning_rate=rate, noise_level=level),
            torch.as_tensor(estimator.generative_weights_),
            # Later rounds of `partial_fit` go on from the scales of the last one: weights would grow without end.
            start_scale=asked.start_scale if estimator.n_rounds_ <= 1 else None,
            calibrate=epochs is None or int(counts.min()) >= edge.MIN_CLASS_ROWS,
            sharp=self._has_sharp_member(estimator),
            own_fraction=asked.validation_fraction if held_out else 0.0,
        )

    def n_epochs(self, estimator: Any, train: LabelledRows, epochs: int | None) -> int:
        stages = self._stages(estimator, torch.bincount(train.labels), 0, epochs, train.times)
        return stages.pretrain.epochs + stages.fine_tune.epochs

    def train(self, estimator: Any, given: Round) -> tuple[dict[str, History], Tensor]:
        counts, model = torch.bincount(given.train.labels), estimator.model_
        stages = self._stages(estimator, counts, given.seed, given.epochs, given.train.times)
        history = train_classes(model, given.train, stages, given.valid, given.report)
        with torch.no_grad():  # without gradients rows are scored in chunks
            return history, model.energies((given.valid or given.train).v)


# --- a trunk -------------------------------------------------------------------------------------------------------

MEMBERS, FEW_MEMBERS, MANY_ROWS = 8, 4, 20_000
UNITS_PER_CLASS, FEWEST_PER_CLASS, UNITS_OF_ALL = 8, 2, 800  # of many classes fewer: quicker, and little worse
#: what energies are multiplied by: reconstructions suit noise of a variance of one tenth, see `energate.training.trunk`
TRUNK_SCALE = 10.0
SIGMOID_WEIGHT = 0.05  # of the denoising loss where outputs are sigmoid
#: up to so many rows, width of the layers and rows in a batch; for more the last
BREADTHS = ((2_000, 128), (10_000, 192), (math.inf, 256))
BATCHES = ((1_000, 128), (10_000, 256), (50_000, 512), (math.inf, 1024))
STEPS, PASSES = 400, 12  # of training: at least so many steps, and passes through the rows
STEPS_PER_EPOCH = 12  # an epoch is as many passes as this takes: validation has its price
WAVES, MOST_WAVES = 96, 4  # cosines in all, and of a column, at most
LEAST_VARIANCE = 0.01  # of the noise, in what is divided by it


def _by_rows(n_rows: int, steps: tuple[tuple[float, int], ...]) -> int:
    return next(value for most, value in steps if n_rows <= most)


class Trunk(Kind):
    """Layers that the classes share, a head of units for each class, and members with folds of their own."""

    whole = True
    remembers = False
    least_valid = math.inf
    auto: ClassVar[dict[str, Any]] = {
        "scaling": "robust", "noise_level": 0.2, "learning_rate": 4e-3, "weight_decay": 0.02, "batch_size": 128,
    }  # fmt: skip

    def weights(self, estimator: Any, n_rows: int) -> Array:
        found = self._auto_weight(estimator) if is_auto(estimator.generative_weight) else given_weights(estimator)
        if len(found) > 1:
            return found
        if is_auto(estimator.n_members):
            n_members = MEMBERS if n_rows <= MANY_ROWS else FEW_MEMBERS
        else:
            n_members = edge.whole_number(estimator, "n_members", 1, " or 'auto'")
        return np.repeat(found, n_members)

    def _auto_weight(self, estimator: Any) -> Array:
        """Such that the loss of a row that stays as noisy as it is counts one half."""
        sigmoid = visible_of(estimator) == "sigmoid"
        return np.array([SIGMOID_WEIGHT if sigmoid else 1 / self._noise_variance(estimator)])

    def _noise_variance(self, estimator: Any) -> float:
        """How far the noise moves a cell, squared, in the mean; noise that replaces cells moves them by about 1."""
        asked = self.settled(estimator)
        level = float(edge.per_member(asked, "noise_level", 1))
        return max(LEAST_VARIANCE, level**2 if asked.noise == "gaussian" else level)

    def breadth(self, estimator: Any, n_rows: int) -> int:
        if is_auto(estimator.breadth):
            return _by_rows(n_rows, BREADTHS)
        return edge.whole_number(estimator, "breadth", 1, " or 'auto'")

    def skip(self, estimator: Any, rows: Examples) -> Array:
        """The best that a column can do on its own against the noise."""
        if visible_of(estimator) == "sigmoid":
            return np.empty(0)
        variance: Array = estimator.scaler_(rows.X).var(axis=0)
        return variance / (variance + self._noise_variance(estimator))

    def build(self, estimator: Any, generator: torch.Generator) -> ClassEnergies:
        n_classes, n_members = len(estimator.classes_), len(estimator.generative_weights_)
        waves = [] if estimator.scaler_.soft is None else np.flatnonzero(estimator.scaler_.soft).tolist()
        units_per_class = int(np.clip(UNITS_OF_ALL // n_classes, FEWEST_PER_CLASS, UNITS_PER_CLASS))
        n_hidden, skips = edge.default_size(estimator.n_hidden, units_per_class), bool(len(estimator.skip_))
        units = TrunkUnits(
            n_members * n_classes,
            estimator.cells_.width,
            n_hidden,
            estimator.activation,
            n_members=n_members,
            breadth=estimator.breadth_,
            depth=edge.whole_number(estimator, "depth", 1),
            waves=waves,
            n_waves=min(MOST_WAVES, WAVES // max(1, len(waves))),
            repeats=TRUNK_SCALE * n_hidden**0.5 if skips else 1.0,
            generator=generator,
        )
        skip = torch.as_tensor(estimator.skip_) if skips else None
        return ClassEnergies([Autoencoder([units], visible_of(self.settled(estimator)), skip)], n_classes)

    def start(self, estimator: Any, rows: Examples, generator: torch.Generator) -> None:  # noqa: ARG002
        """From the frequencies of the classes, and logits on the scale of one unit."""
        model = estimator.model_
        counts = 1 + np.bincount(rows.labels, rows.weight, model.n_classes)  # of a class of `partial_fit`, perhaps 0
        with torch.no_grad():
            model.B.copy_(torch.as_tensor(np.log(counts / counts.sum())).to(model.B).expand_as(model.B))
            (units,) = model.autoencoders[0].groups
            model.beta.fill_(units.repeats * units.n_hidden**-0.5)

    def _training(
        self, estimator: Any, n_rows: int, seed: int, epochs: int | None, times: float = 1.0
    ) -> TrunkTraining:
        asked, n_members = self.settled(estimator), estimator.model_.n_members
        batch_size = _by_rows(n_rows, BATCHES) if is_auto(estimator.batch_size) else asked.batch_size
        holds_out = asked.early_stopping and epochs is None and n_rows >= 2 * n_members
        n_folds = max(n_members, math.ceil(1 / asked.validation_fraction)) if holds_out else 0
        n_train = n_rows - (n_rows // n_folds if n_folds else 0)
        per_pass = max(1, n_train // batch_size)
        passes = math.ceil(STEPS_PER_EPOCH / per_pass) if epochs is None else 1
        wanted = max(STEPS, math.ceil(PASSES * per_pass * times))
        if epochs is None:
            epochs = edge.auto_epochs(asked.max_epochs, passes * per_pass, wanted, 1, max(wanted, 1))
        return TrunkTraining(
            epochs,
            batch_size,
            float(edge.per_member(asked, "learning_rate", 1)),
            float(edge.per_member(asked, "weight_decay", 1)),
            torch.as_tensor(estimator.generative_weights_),
            asked.noise,
            float(edge.per_member(asked, "noise_level", 1)),
            asked.n_iter_no_change,
            asked.validate_every,
            n_folds,
            passes,
            seed,
        )

    def n_epochs(self, estimator: Any, train: LabelledRows, epochs: int | None) -> int:
        return self._training(estimator, len(train.v), 0, epochs, train.times).epochs

    def train(self, estimator: Any, given: Round) -> tuple[dict[str, History], Tensor]:
        model, train = estimator.model_, given.train
        how = self._training(estimator, len(train.v), given.seed, given.epochs, train.times)
        history, held_out = train_trunk(model, given.train, how, given.valid, given.report)
        with torch.no_grad():
            if held_out is None or given.valid is not None:
                return {"fine-tune": history}, model.energies((given.valid or given.train).v)
            return {"fine-tune": history}, held_out.energies(model)


# --- rows as units -------------------------------------------------------------------------------------------------

MOST_UNITS, FEWEST_UNITS, UNITS = 5000, 100, 20_000  # of a class, at most and at least, and of all together


class Memory(Kind):
    """The rows of every class as its units: they join a memory that starts empty, and nothing is trained."""

    whole = True
    remembers = True
    least_valid = math.inf
    auto: ClassVar[dict[str, Any]] = {  # only the first matters
        "scaling": "robust", "noise_level": 0.0, "learning_rate": 1e-3, "weight_decay": 0.0, "batch_size": 100,
    }  # fmt: skip

    def weights(self, estimator: Any, n_rows: int) -> Array:  # noqa: ARG002
        if not is_auto(estimator.n_members) and estimator.n_members != 1:
            raise InputError(
                f"`n_members` is for a trunk, and a memory has one member; got {estimator.n_members!r}. Leave it at "
                "'auto', or use units='trunk'."
            )
        return np.zeros(1)

    def breadth(self, estimator: Any, n_rows: int) -> int:  # noqa: ARG002
        return 0

    def skip(self, estimator: Any, rows: Examples) -> Array:  # noqa: ARG002
        return np.empty(0)

    def build(self, estimator: Any, generator: torch.Generator) -> ClassEnergies:  # noqa: ARG002
        self._most(estimator)
        return blank(len(estimator.classes_), estimator.cells_.width, estimator.n_units_ or 1)

    def start(self, estimator: Any, rows: Examples, generator: torch.Generator) -> None:
        """Empty."""

    def _most(self, estimator: Any) -> int:
        """How many units a class may have."""
        if is_auto(estimator.n_hidden):
            return int(np.clip(UNITS // len(estimator.classes_), FEWEST_UNITS, MOST_UNITS))
        return edge.whole_number(estimator, "n_hidden", 1, " or 'auto'")

    def n_epochs(self, estimator: Any, train: LabelledRows, epochs: int | None) -> int:  # noqa: ARG002
        return 1

    def train(self, estimator: Any, given: Round) -> tuple[dict[str, History], Tensor]:
        if not torch.isfinite(given.train.v).all():
            raise InputError(
                f"With scaling={self.settled(estimator).scaling!r} a memory takes values below "
                f"{torch.finfo(given.train.v.dtype).max:.0e}; `X` has larger ones. Divide them by a number, or use "
                "scaling='robust'."
            )
        found = remember_classes(estimator.model_, given.train, self._most(estimator), given.seed, given.valid)
        units = found.model.autoencoders[0].groups[0].n_hidden
        n_rows = int((given.train.weight > 0).sum())
        given.report.tell("remember", f"[remember] {n_rows} rows; up to {units} units of a class")
        estimator.model_, estimator.n_units_ = found.model, units
        return {}, found.left_out


#: kinds by the name of ``units``; other names, and functions, are the paper's
KINDS: dict[str, Kind] = {"trunk": Trunk(), "memory": Memory()}
PER_CLASS = PerClass()


def kind_of(units: Any) -> Kind:
    """The kind that ``units`` asks for."""
    if isinstance(units, str) and units not in (*KINDS, *edge.UNIT_KINDS):
        raise InputError(
            f"`units` must be one of {', '.join((*KINDS, *edge.UNIT_KINDS))}, or a function; got {units!r}."
        )
    return KINDS.get(units, PER_CLASS) if isinstance(units, str) else PER_CLASS
