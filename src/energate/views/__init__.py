"""What a fitted estimator says of itself and of rows, for people and for pages: numbers in the units of the user's X.

A class of an `EnergyClassifier` is several auto-encoders (parts and members) whose energies add with positive weights.
Together they are one auto-encoder again: its pre-output is the weighted mean of theirs, its reconstruction what the
output activation makes of it, and its vector field the gradient of the class's energy, divided by the sum of the
weights.  `class_autoencoder` builds it.
"""

import copy
from dataclasses import replace
from functools import partial, singledispatch
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

import energate
from energate import dynamics
from energate.activations import Activation, Function
from energate.autoencoder import Autoencoder
from energate.errors import InputError
from energate.estimators import EnergyClassifier, EnergyRefiner, EnergyScorer, LabelMLP, PairScorer
from energate.estimators.bases import MissingBase
from energate.estimators.edge import Array, in_chunks
from energate.estimators.methods import MIXED_STEPS
from energate.training.classes import ClassEnergies
from energate.units import HiddenUnits, NetworkUnits

GATE_STEPS = MIXED_STEPS
RATE = 0.1  # of a step along the vector field: short, so that the points show the way


# --- describe ----------------------------------------------------------------------------------------------------


def describe(model: Any) -> dict[str, Any]:
    """What a fitted estimator is, as JSON takes it.

    Always there: ``estimator``, ``task`` (``"classify"``, ``"multilabel"``, ``"anomaly"`` or ``"pairs"``),
    ``n_features``, ``feature_names`` (None if unknown), ``classes`` (None if there are none), ``labels`` (names or
    numbers of the labels, None if there are none), ``sizes`` (what counts as one unit of each column, None for pairs),
    ``energate`` (the version), ``n_parameters``.
    """
    about = _about(model)
    check_is_fitted(model)
    names, scaler = vars(model).get("feature_names_in_"), vars(model).get("scaler_")
    return {
        "estimator": type(model).__name__,
        "task": about.pop("task"),
        "n_features": int(model.n_features_in_),
        "feature_names": None if names is None else [str(name) for name in names],
        "classes": about.pop("classes", None),
        "labels": about.pop("labels", None),
        "sizes": None if scaler is None else scaler.size.tolist(),
        "energate": energate.__version__,
        "n_parameters": _n_parameters(model.model_),
        **about,
    }


def _n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@singledispatch
def _about(model: Any) -> dict[str, Any]:
    kinds = "EnergyClassifier, EnergyScorer, EnergyRefiner, LabelMLP or PairScorer"
    raise InputError(f"`model` must be a fitted {kinds}; got {type(model).__name__}.")


@_about.register
def _(model: EnergyClassifier) -> dict[str, Any]:
    check_is_fitted(model)
    units = model.units if isinstance(model.units, str) else "a function"
    return {
        "task": "classify",
        "classes": model.classes_.tolist(),
        "units": units,
        "n_members": model.model_.n_members,
        "scaling": model.scaling,
    }


@_about.register
def _(model: EnergyScorer) -> dict[str, Any]:
    check_is_fitted(model)
    units = model.units if isinstance(model.units, str) else "a function"
    return {"task": "anomaly", "units": units, "scaling": model.scaling, "threshold": float(model.offset_)}


@_about.register
def _(model: EnergyRefiner) -> dict[str, Any]:
    check_is_fitted(model)
    known = _labels_or_classes(model, len(model.slope_))
    return {
        **known,
        "relation": model.relation,
        "method": model.method,
        "objective": model.objective,
        "gate": float(model.gate_),
        "n_steps": int(model.n_steps_),
        "gain": {"mean": model.gain_.mean, "standard_error": model.gain_.standard_error},
        "verdict": model.verdict_,
        "base": None if model.base_ is None else _base_name(model.base_),
        "has_base": not isinstance(model.base_, MissingBase),  # else the base's scores must come with the rows
        "n_sets": int(model.n_sets_),
    }


@_about.register
def _(model: LabelMLP) -> dict[str, Any]:
    check_is_fitted(model)
    return _labels_or_classes(model, len(model.classes_))


@_about.register
def _(model: PairScorer) -> dict[str, Any]:
    check_is_fitted(model)
    return {"task": "pairs", "relation": model.relation, "n_targets": int(model.n_targets_in_)}


def _base_name(base: Any) -> str:
    name = base.kind if isinstance(base, MissingBase) else type(base).__name__
    return str(name).rpartition(".")[2]


def _labels_or_classes(model: EnergyRefiner | LabelMLP, n_labels: int) -> dict[str, Any]:
    if model.multilabel_:
        return {"task": "multilabel", "labels": list(range(n_labels))}
    return {"task": "classify", "classes": np.asarray(model.classes_).tolist()}


# --- explain -----------------------------------------------------------------------------------------------------


def explain(model: Any, X: Any, *, scores: Any = None) -> dict[str, NDArray[Any]]:
    """Everything that a model says of rows X (n, d), as arrays; energies are higher where the model likes a row more.

    `EnergyClassifier`: ``energies`` (n, K) calibrated, ``decision`` (n, K) the same less a term that all classes share,
    ``probabilities`` (n, K), ``predictions`` (n,), ``reconstructions`` (n, K, d) by each class's auto-encoder, and
    ``liking`` (n,), how much any class likes the row.

    `EnergyScorer`: ``energies`` (n,), ``scores`` (n,), the energies above the threshold, ``is_inlier`` (n,), and
    ``reconstructions`` (n, 1, d).

    `EnergyRefiner`: ``base`` and ``refined`` (n, L), calibrated probabilities before and after, ``predictions``, and
    ``steps`` (T, n, L), the probabilities on the way: after every step of ascent, or, for method "sets", with more
    and more of the refined ones mixed in.  ``scores`` are the base's scores (n, L), if they were computed elsewhere.
    """
    if scores is not None and not isinstance(model, EnergyRefiner):
        raise InputError(f"`scores` are for an EnergyRefiner; got a {type(model).__name__}. Leave them out.")
    return _explain(without_names(model, X), X, scores)


def without_names(model: Any, X: Any) -> Any:
    """The model, for rows X without names: without those of its columns, or scikit-learn would warn on every call."""
    named = isinstance(model, BaseEstimator) and "feature_names_in_" in vars(model)
    if not named or not isinstance(X, np.ndarray | list | tuple):
        return model
    nameless = copy.copy(model)
    del nameless.feature_names_in_
    return nameless


@singledispatch
def _explain(model: Any, X: Any, scores: Any) -> dict[str, NDArray[Any]]:  # noqa: ARG001
    raise InputError(
        f"`model` must be a fitted EnergyClassifier, EnergyScorer or EnergyRefiner; a {type(model).__name__} has no "
        "energies of rows to explain."
    )


@_explain.register
def _(model: EnergyClassifier, X: Any, scores: Any) -> dict[str, NDArray[Any]]:  # noqa: ARG001
    rows = _checked(model, X)
    decision = model._logits(X)

    def reconstructions(v: Tensor) -> Tensor:
        return reconstruct_classes(model.model_, _inside(model, v)).movedim(0, 1)  # (N, K, D)

    return {
        "energies": model.energies(X),
        "decision": decision,
        "probabilities": model.predict_proba(X),
        "predictions": model.classes_[decision.argmax(1)],
        "reconstructions": _unscaled(model, in_chunks(rows, model.scaler_, model.model_.B, reconstructions)),
        "liking": model.score_samples(X),
    }


@_explain.register
def _(model: EnergyScorer, X: Any, scores: Any) -> dict[str, NDArray[Any]]:  # noqa: ARG001
    energies = model.score_samples(X)
    above = energies - model.offset_
    return {
        "energies": energies,
        "scores": above,
        "is_inlier": above >= 0,
        "reconstructions": model.reconstruct(X)[:, None],
    }


@_explain.register
def _(model: EnergyRefiner, X: Any, scores: Any) -> dict[str, NDArray[Any]]:
    return _course(model, X, scores, steps=True)


def refine(model: EnergyRefiner, X: Any, *, scores: Any = None) -> dict[str, NDArray[Any]]:
    """What `explain` says of rows, but the ``steps``: ``base`` and ``refined`` (n, L), and ``predictions``."""
    return _course(without_names(model, X), X, scores, steps=False)


def _course(model: EnergyRefiner, X: Any, scores: Any, *, steps: bool) -> dict[str, NDArray[Any]]:
    found = model.follow(X, scores, steps=steps)
    said = {"base": found.base, "refined": found.refined, "predictions": found.predictions}
    return {**said, "steps": found.steps} if steps else said


def _checked(model: Any, X: Any) -> Array:
    check_is_fitted(model)
    return validate_data(model, X, dtype=np.float64, reset=False)


def _inside(model: EnergyClassifier | EnergyScorer, v: Tensor) -> Tensor:
    return v.clamp(0, 1) if model.scaling == "unit" else v  # with sigmoid outputs the energy ends at 0 and 1


def _unscaled(model: EnergyClassifier | EnergyScorer, rows: Array) -> Array:
    return rows * model.scaler_.size + model.scaler_.offset


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
    merged = Autoencoder(groups, model.autoencoders[0].visible).to(a)
    with torch.no_grad():
        merged.a.copy_(a)
    return merged, scale, constant


def _weighted(units: HiddenUnits, weight: float) -> HiddenUnits:
    """Units whose energies and decoded vectors count with a weight above 0; they are changed in place."""
    found = units.activation
    units.activation = replace(
        Activation(found.name, found.f, found.potential, found.slope_min, found.bounds),
        f=partial(_times, weight, found.f),
        potential=partial(_times, weight, found.potential),
        slope_min=weight * found.slope_min,
        bounds=(weight * found.bounds[0], weight * found.bounds[1]),
    )
    return units


def _times(weight: float, function: Function, u: Tensor) -> Tensor:
    return weight * function(u)


# --- trajectories ------------------------------------------------------------------------------------------------


def trajectory(
    model: Any, x: Any, *, n_steps: int = 50, of: int | None = None, rate: float | str = RATE
) -> dict[str, Any]:
    """Where the vector field takes one row x, (d,) or (1, d): ``points`` (T, d), and ``energies`` (T,) along the way.

    For an `EnergyClassifier` the field is that of class ``of``, a number from 0; None is the most probable one.  ``of``
    is also in the result (None for an `EnergyScorer`), and ``converged``: whether the row came to rest.  T is at most
    ``n_steps + 1``; it is less where the row comes to rest, or would run off.  ``rate`` is the ``step`` of
    `energate.trajectory`: a number, or ``"auto"`` for long steps that never lower the energy.
    """
    if isinstance(n_steps, bool) or not isinstance(n_steps, int | np.integer) or n_steps < 1:
        raise InputError(f"`n_steps` must be a whole number of at least 1; got {n_steps!r}.")
    if not isinstance(model, EnergyClassifier | EnergyScorer):
        raise InputError(
            f"A trajectory needs an EnergyClassifier or an EnergyScorer; a {type(model).__name__} has no vector field "
            "over rows. The steps of a refiner are in `explain`."
        )
    row = np.asarray(x, dtype=np.float64)
    if row.size != model.n_features_in_ or row.ndim > 2:
        raise InputError(f"`x` must be one row of {model.n_features_in_} columns; got shape {row.shape}.")
    X = row.reshape(1, -1)
    model = without_names(model, X)
    X = _checked(model, X)
    if isinstance(model, EnergyScorer):
        if of is not None:
            raise InputError(f"`of` names a class, and an EnergyScorer has none; got {of!r}. Leave it out.")
        autoencoder, scale, constant, index = model.model_, 1.0, 0.0, 0
    else:
        of = int(model._logits(X).argmax()) if of is None else _class_number(model, of)
        autoencoder, scale, constant, index = _field_of(model.model_, of)
    start = torch.as_tensor(in_chunks(X, model.scaler_, autoencoder.a, lambda v: _inside(model, v))).to(autoencoder.a)
    walk = dynamics.trajectory(autoencoder, start, step=rate, max_steps=int(n_steps), keep_path=True)
    assert walk.path is not None
    n_points = int(walk.n_steps[index, 0]) + 1
    points, energies = walk.path[:n_points, index, 0], walk.energies[:n_points, index, 0]
    # At 0 and 1 the field of sigmoid outputs is infinite, so a walk sets out a little inside; it is told from the row.
    with torch.no_grad():
        points[0], energies[0] = start[0], autoencoder.energy(start)[index, 0]
    return {
        "points": _unscaled(model, points.double().cpu().numpy()),
        "energies": scale * energies.double().cpu().numpy() + constant,
        "of": of,
        "converged": bool(walk.converged[index, 0]),
    }


def _class_number(model: EnergyClassifier, of: Any) -> int:
    if isinstance(of, bool) or not isinstance(of, int | np.integer) or not 0 <= of < len(model.classes_):
        raise InputError(f"`of` must be the number of a class, from 0 to {len(model.classes_) - 1}; got {of!r}.")
    return int(of)


def _field_of(model: ClassEnergies, k: int) -> tuple[Autoencoder, float, float, int]:
    """An auto-encoder that holds class k, scale and constant of its energy, and which of its models it is."""
    only = model.autoencoders[0]
    if len(model.autoencoders) == model.n_members == 1 and any(isinstance(g, NetworkUnits) for g in only.groups):
        return only, float(model.beta[0, 0]), float(model.B.detach()[0, k]), k  # a network cannot be taken apart
    return *class_autoencoder(model, k), 0
