"""Several configurations of `EnergyClassifier` trained as the members of one program, and each of them measured.

Configurations that differ only in what steps training (`PER_MEMBER`) can be members of one classifier; others are
grouped, a program for each group.
"""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from energate.errors import InputError
from energate.estimators.classifier import PER_MEMBER, EnergyClassifier
from energate.estimators.kinds import kind_of

Config = dict[str, Any]
C = TypeVar("C")
T = TypeVar("T")
#: what one configuration may cause, and another be free of: divergence, values that cannot be used, too little memory
FAILURES: tuple[type[Exception], ...] = (InputError, torch.OutOfMemoryError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


def programs(configs: Sequence[Config]) -> list[list[int]]:
    """The numbers of the configurations, in groups that can train as one.

    A value that JSON does not know, such as a function, keeps its configuration alone: models that it builds may share
    weights.  So does a kind of units whose members belong together.
    """
    groups: dict[str, list[int]] = {}
    for number, config in enumerate(configs):
        shared = {name: value for name, value in config.items() if name not in PER_MEMBER}
        own = f"that of {number}"
        if kind_of(config.get("units")).whole:
            shared["alone"] = number
        groups.setdefault(json.dumps(shared, sort_keys=True, default=lambda _: own), []).append(number)  # noqa: B023
    return list(groups.values())


def merged(configs: Sequence[Config]) -> Config:
    """The parameters of one classifier whose members are these configurations, which differ in `PER_MEMBER` only."""
    return {
        name: [config[name] for config in configs] if name in PER_MEMBER else value
        for name, value in configs[0].items()
    }


def or_each_alone(
    configs: Sequence[C],
    train: Callable[[Sequence[C]], list[T]],
    failed: Callable[[C, Exception, float], T],
    failures: tuple[type[Exception], ...] = FAILURES,
) -> list[T]:
    """What ``train`` gives for each of the configurations of one program.

    If that fails, each is trained alone, so that a bad one spoils no other; where that fails, too, there is what
    ``failed`` makes of the configuration, the error and the seconds that it took.
    """
    began = time.perf_counter()
    try:
        return train(configs)
    except failures as error:
        if len(configs) > 1:
            return [each for config in configs for each in or_each_alone([config], train, failed, failures)]
        return [failed(configs[0], error, time.perf_counter() - began)]


@torch.no_grad()
def member_logits(classifier: EnergyClassifier, v: Tensor) -> Tensor:
    """The calibrated energies of scaled rows v (N, D) under every member of a fitted classifier, alone: (C, N, K).

    Members that belong together count as one.
    """
    model = classifier.model_
    if kind_of(classifier.units).whole:
        return model.logits(v.to(model.B)).unsqueeze(0)
    return model.calibrated(model.part_energies(v.to(model.B)))
