"""What a fitted estimator says of itself and of rows, for people and for pages: in the units of the user's X."""

import math
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import energate
from energate import dynamics
from energate.errors import InputError
from energate.estimators.edge import in_chunks
from energate.tables.values import is_frame
from energate.views.accounts import Account
from energate.views.meaning import MeaningWarning, meaning_of, measurable
from energate.views.view import View, view_of

RATE = 0.1  # of a step along the vector field: short, so that the points show the way
LEAST_SIDE = 8  # of rows that are taken for square pictures without being told


def describe(model: Any) -> dict[str, Any]:
    """What a fitted estimator is, as JSON takes it.

    Always there: ``estimator``, ``task`` (``"classify"``, ``"multilabel"``, ``"anomaly"`` or ``"pairs"``),
    ``n_features``, ``feature_names`` (None if unknown), ``classes`` (None if there are none), ``labels`` (names or
    numbers of the labels, None if there are none), ``seen_names`` (of the columns that the auto-encoders see: those of
    missing cells and categories among them; None if unknown), ``sizes`` (what counts as one unit of each of these, None
    for pairs), ``cells`` (what the user's columns hold, and the numbers that stand for categories; None if all are
    plain numbers), ``energate`` (the version), ``n_parameters``.
    """
    return _described(view_of(model))


def _described(view: View) -> dict[str, Any]:
    model, task = view.named, view.task
    known, scaler = vars(model).get("feature_names_in_"), vars(model).get("scaler_")
    names = None if known is None else [str(name) for name in known]
    numbered = _numbered(view) if names is None else names
    plain = view.cells is None or view.cells.plain
    return {
        "estimator": type(model).__name__,
        "task": task,
        "n_features": view.n_features,
        "feature_names": names,
        "seen_names": names if plain else view.seen_names(numbered),
        "classes": list(view.labels) if task == "classify" else None,
        "labels": list(view.labels) if task == "multilabel" else None,
        "sizes": None if scaler is None else scaler.size.tolist(),
        "cells": None if view.cells is None or plain else view.cells.about(numbered),
        "energate": energate.__version__,
        "n_parameters": sum(parameter.numel() for parameter in model.model_.parameters()),
        **view.about(),
    }


def _numbered(view: View) -> list[str]:
    """Names for columns that have none."""
    return [f"x{i}" for i in range(view.n_features)]


def explain(model: Any, X: Any, *, scores: Any = None) -> dict[str, NDArray[Any]]:
    """Everything that a model says of rows X (n, d), as arrays; energies are higher where the model likes a row more.

    A classifier by energy: ``energies`` (n, K) calibrated, ``decision`` (n, K) the same less a term that all classes
    share, ``probabilities`` (n, K), ``predictions`` (n,), ``reconstructions`` (n, K, D) by each class's auto-encoder,
    ``seen`` (n, D), the rows in the same columns, and ``liking`` (n,), how much any class likes the row.  Numbers are
    seen as they are; missing cells and categories are seen as columns of 0 and 1: ``seen_names`` of `describe`.

    `EnergyScorer`: ``energies`` (n,), ``scores`` (n,), the energies above the threshold, ``is_inlier`` (n,), and
    ``reconstructions`` (n, 1, d).

    `EnergyRefiner`: ``base`` and ``refined`` (n, L), calibrated probabilities before and after, ``predictions``, and
    ``steps`` (T, n, L), the probabilities on the way: after every step of ascent, or, for method "sets", with more
    and more of the refined ones mixed in.  ``scores`` are the base's scores (n, L), if they were computed elsewhere.

    Where the reconstructions of ten rows or more mean little, a `MeaningWarning` says so: `measure_meaning`.
    """
    view = view_of(model)
    X = view.rows(X)
    found = _explained(view, X, scores)
    told = meaning_of(view, X, found).warning if measurable(view, len(X)) else None
    if told is not None:
        warnings.warn(told, MeaningWarning, stacklevel=2)
    return found


def _explained(view: View, X: NDArray[np.float64], scores: Any) -> dict[str, NDArray[Any]]:
    check_explainable(view.named, scores is not None)
    command = view.commands()["explain"]
    found = command.compute(X) if scores is None else command.compute(X, scores=scores)
    return {output.name: found[output.name] for output in command.outputs}


def check_explainable(model: Any, scores: bool = False) -> None:
    """Refuse early what `explain` refuses, before a table is read; ``scores``: whether those of a base will come."""
    view, name = view_of(model), type(model).__name__
    if view.account is None:
        raise InputError(
            f"A {name} has no energies of single rows to explain; a classifier by energy, an anomaly model or a "
            "refiner has."
        )
    if scores and "scores" not in {beside.name for beside in view.commands()["explain"].beside}:
        raise InputError(f"Scores of a base are for a refiner; the model is of the kind {name}. Leave them out.")


def account_of(model: Any, x: Any, columns: Any = None, names: list[str] | None = None, scores: Any = None) -> Account:
    """One row x as `View.rows` gives it, explained.

    ``columns`` are those that the model was saved with, if any, ``names`` those of x.
    ``scores`` (L,) are what a refiner's base says of the row, if it was computed elsewhere.
    """
    view = view_of(model)
    X = view.rows(_one_row(view, x))
    said = _explained(view, X, None if scores is None else np.reshape(scores, (1, -1)))
    # Of method "sets" and ascent alike the steps come first, then the rows.
    said = {name: values[:, 0] if name == "steps" else values[0] for name, values in said.items()}
    about = _described(view)
    names = view.seen_names(names or about["feature_names"] or _numbered(view))
    sizes = np.asarray(about["sizes"], dtype=np.float64)
    assert view.account is not None
    return view.account(about, said, view.seen(X)[0], names, view.label_names(columns), sizes, _image(about, columns))


def _image(about: dict[str, Any], columns: Any) -> tuple[int, ...] | None:
    """Height and width of the picture that a row is: as saved, or a square if nothing is known of the columns."""
    if columns is not None:
        found: tuple[int, ...] | None = columns.image
        return found
    side = math.isqrt(about["n_features"])
    if "shape" in about:
        return tuple(about["shape"])
    square = side * side == about["n_features"] and side >= LEAST_SIDE
    return (side, side) if square and about["feature_names"] is None and about["cells"] is None else None


# --- trajectories ------------------------------------------------------------------------------------------------


def trajectory(
    model: Any, x: Any, *, n_steps: int = 50, of: int | None = None, rate: float | str = RATE
) -> dict[str, Any]:
    """Where the vector field takes one row x, (d,) or (1, d): ``points`` (T, D), and ``energies`` (T,) along the way.

    For a classifier the field is that of class ``of``, a number from 0; None is the most probable one, and of an
    `ImageEnergyClassifier` all classes together, whose field has learnt to denoise.  ``of`` is also in the result (None
    for an `EnergyScorer`, and for all classes together), and ``converged``: whether the row came to rest.  T is at most
    ``n_steps + 1``; it is less where the row comes to rest, or would run off.  ``rate`` is the ``step`` of
    `energate.trajectory`: a number, or ``"auto"`` for long steps that never lower the energy.
    """
    if isinstance(n_steps, bool) or not isinstance(n_steps, int | np.integer) or n_steps < 1:
        raise InputError(f"`n_steps` must be a whole number of at least 1; got {n_steps!r}.")
    view = view_of(model)
    X = view.rows(_one_row(view, x))
    course = view.course(X, of)
    autoencoder, index = course.autoencoder, course.index
    inside = autoencoder.visible.name == "sigmoid"  # the energy ends at 0 and 1
    scaled = in_chunks(X, view.scaled, autoencoder.a, lambda v: v.clamp(0, 1) if inside else v)
    start = torch.as_tensor(scaled).to(autoencoder.a)
    walk = dynamics.trajectory(autoencoder, start, step=rate, max_steps=int(n_steps), keep_path=True)
    assert walk.path is not None
    n_points = int(walk.n_steps[index, 0]) + 1
    points, energies = walk.path[:n_points, index, 0], walk.energies[:n_points, index, 0]
    # At 0 and 1 the field of sigmoid outputs is infinite, so a walk sets out a little inside; it is told from the row.
    with torch.no_grad():
        points[0], energies[0] = start[0], autoencoder.energy(start)[index, 0]
    return {
        "points": view.model.scaler_.undo(points.double().cpu().numpy()),
        "energies": course.scale * energies.double().cpu().numpy() + course.constant,
        "of": course.of,
        "converged": bool(walk.converged[index, 0]),
    }


def _one_row(view: View, x: Any) -> Any:
    """A row as `View.rows` takes it: numbers, or a frame of one row."""
    row = x if is_frame(x) else np.asarray(x, dtype=np.float64)
    n_cells, n_axes = math.prod(row.shape), len(row.shape)
    if n_cells != view.n_features or n_axes > 2:
        raise InputError(f"`x` must be one row of {view.n_features} columns; got shape {row.shape}.")
    return row if is_frame(x) else row.reshape(1, -1)
