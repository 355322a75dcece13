"""How strange a row is, in the answers of every model with energies held out, and what follows at a level."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energate import conformal
from energate.estimators.edge import Array
from energate.estimators.liking import HeldOutMixin, LikingMixin
from energate.views.view import FLAG, Level, Output

P_VALUE = Output("p_value", "p_value")
REJECT = Output("reject", "reject", kind=FLAG)
SETS = Output("sets", "set_", ("label",), FLAG)


def strangeness(model: HeldOutMixin) -> tuple[Output, ...]:
    """The output that a model says of strangeness; none where an older version kept no energies of rows held out."""
    return (P_VALUE,) if len(model.held_out_) else ()


def strange(model: HeldOutMixin, energies: Array) -> dict[str, Array]:
    """That output, from energies (n,)."""
    return {P_VALUE.name: conformal.p_values(energies, model.held_out_)} if len(model.held_out_) else {}


def rejecting(model: HeldOutMixin) -> tuple[Level, ...]:
    """``reject``: rows as strange as that share of those held out, or, at lower levels, stranger than all of them."""
    if not strangeness(model):
        return ()
    least = 1 / (len(model.held_out_) + 1)
    return (Level("reject", REJECT, lambda said, rate: said[P_VALUE.name] <= np.maximum(rate, least)),)


def setting(model: LikingMixin) -> tuple[Level, ...]:
    """``alpha``: the classes that a row may be of."""
    return (Level("alpha", SETS, _sets_of(model)),)


def _sets_of(model: LikingMixin) -> Callable[[dict[str, Any], Array], NDArray[Any]]:
    def sets(said: dict[str, Any], alpha: Array) -> NDArray[Any]:
        for level in np.unique(alpha):
            model.class_reference(float(level))
        return class_p_values(model, said["decision"]) > alpha[:, None]

    return sets


def class_p_values(model: LikingMixin, decision: Array) -> Array:
    """The p-value of each class, from what the classes' softmax is taken of: (n, K)."""
    log_p = decision - np.logaddexp.reduce(decision, axis=1, keepdims=True)
    return conformal.class_p_values(log_p, model.class_reference())
