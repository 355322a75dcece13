"""The base of an `EnergyRefiner`: in the files if it is ours, else only its class, or bytes that skops has written.

A base of ours is an entry like that of the refiner itself.  Any other is ``{"class": name, "file": None}``, or with the
size and sha256 of ``base.skops`` in place of None.  The parameter ``base`` is ``{"$class": name}``, or None.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from energate.errors import InputError, require
from energate.estimators import EnergyRefiner
from energate.estimators.bases import MissingBase, label_scores
from energate.persistence._store import BASE
from energate.persistence._values import line

SAVED = "saved"  # the default of `load`: the base that is in the files


def is_foreign(base: Any) -> bool:
    """Whether the entry of a base is that of one that is not ours."""
    return type(base) is dict and "class" in base


def class_name(base: Any) -> str:
    """The class of a base, also of one that is not there."""
    return str(base.kind) if isinstance(base, MissingBase) else type(base).__name__


def dump_base(base: Any) -> bytes:
    """A fitted base as skops writes it."""
    skops = require("skops.io", "skops")
    if isinstance(base, MissingBase):
        raise InputError(f"with_base=True needs the base, a {base.kind}, which this refiner was loaded without.")
    try:
        return bytes(skops.dumps(base))
    except Exception as error:  # whatever the parts of the base raise
        raise InputError(
            f"skops cannot save the base, a {class_name(base)} ({type(error).__name__}: {line(error)}). "
            "Leave `with_base` out, save the base yourself, and give it to `load`."
        ) from error


def check_unused(config: dict[str, Any], given: Any, trusted: Any, path: Any) -> None:
    """Refuse what `load` was given for a base that these files do not need."""
    base = config.get("base")
    if not is_foreign(base) and not _is_default(given):
        why = "its base is in the files" if base else "it has no base"
        raise InputError(f"{path!s} needs no `base`: {why}. Leave `base` out.")
    if trusted is not None and (base is None or not base.get("file")):
        raise InputError(f"{path!s} has no {BASE}, so there is nothing to trust. Leave `trusted` out.")
    if trusted is not None and (isinstance(trusted, str) or not all(isinstance(name, str) for name in trusted)):
        raise InputError(f"`trusted` must be a list of names of types; got {trusted!r}.")


def _is_default(given: Any) -> bool:
    return isinstance(given, str) and given == SAVED


def foreign_base(
    model: EnergyRefiner, kind: str, data: bytes | None, given: Any, trusted: Sequence[str] | None, path: Any
) -> Any:
    """The fitted base that is not ours: the one given, or the one that skops reads, after a look at its scores."""
    if given is None:
        return MissingBase(kind)
    if not _is_default(given):
        base, origin = given, "`base`"
    elif data is not None:
        base, origin = _load_base(data, kind, trusted, path), BASE
    else:
        raise InputError(
            f"{path!s} was fitted on a base, a {kind}, which is not in the files. Give it: load(path, base=the fitted "
            f"{kind}); or load(path, base=None) to use `refine(scores, X)` alone."
        )
    if class_name(base) != kind:
        raise InputError(f"{origin} must be the {kind} that {path!s} was fitted on; got a {class_name(base)}.")
    try:
        row = np.asarray(model.scaler_.offset, dtype=np.float64).reshape(1, -1)  # an ordinary one: the mean
        label_scores(base, row, int(model.varying_.sum()))
    except Exception as error:  # whatever the base raises
        raise InputError(
            f"{origin} cannot be the {kind} that {path!s} was fitted on ({type(error).__name__}: {line(error)}) "
            "Give the one that the refiner was fitted with."
        ) from error
    return base


def _load_base(data: bytes, kind: str, trusted: Sequence[str] | None, path: Any) -> Any:
    skops = require("skops.io", "skops")
    try:
        asked = sorted(set(skops.get_untrusted_types(data=data)))
    except Exception as error:  # skops on bytes that it did not write
        raise InputError(f"{path!s} is damaged: {BASE} cannot be read ({line(error)}).") from error
    missing = asked if trusted is None else sorted({*asked} - {*trusted})
    if trusted is None or missing:
        raise InputError(
            f"{path!s} holds its base, a {kind}, in {BASE}, which is read only if you trust where it comes from, and "
            f"these types in it: load(path, trusted={asked}). Or give the base: load(path, base=the fitted {kind})."
        )
    try:
        return skops.loads(data, trusted=asked)
    except Exception as error:  # likewise
        raise InputError(f"{path!s} is damaged: {BASE} cannot be read ({line(error)}).") from error


def set_base(model: EnergyRefiner, base: Any, recorded: Any) -> None:
    """Give a loaded refiner its fitted base, and the parameter that it was fitted from."""
    model.base_ = base
    if recorded is None:
        model.base = None
    elif base is None:  # no label varied, and nothing was fitted
        model.base = MissingBase(recorded["$class"])
    else:
        model.base = base if model.prefit else clone(base)
