"""Configurations trained together: the members of one classifier, and each of them alone again afterwards."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from energate.errors import InputError
from energate.estimators import EnergyClassifier
from energate.estimators.classifier import PER_MEMBER
from energate.training import History
from energate.training.calibration import negative_log_likelihood
from energate.training.classes import LabelledRows
from energate.tuning._space import plain
from energate.tuning._stores import Config, Trial

#: what one configuration may cause, and another be free of: divergence, values that cannot be used, too little memory
FAILURES = (InputError, torch.OutOfMemoryError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


class Trainer:
    """Trains configurations, several as one program, and keeps the best estimator."""

    def __init__(self, base: Config, X: Any, y: Any, sample_weight: Any, objective: str) -> None:
        self.base, self.data, self.objective = base, (X, y, sample_weight), objective
        self.best: tuple[Trial, EnergyClassifier] | None = None

    def programs(self, configs: dict[int, Config]) -> list[dict[int, Config]]:
        """Configurations in groups that can train as one."""
        groups: dict[str, dict[int, Config]] = {}
        for number, config in configs.items():
            shared = {name: plain(value) for name, value in config.items() if name not in PER_MEMBER}
            # Models of a user's function may share weights, so members would not be apart.
            alone = number if callable(config.get("units", self.base["units"])) else None
            groups.setdefault(json.dumps([shared, alone], sort_keys=True), {})[number] = config
        return list(groups.values())

    def run(self, configs: dict[int, Config]) -> list[Trial]:
        """Train one program; if that fails, each configuration alone, so that a bad one spoils no other."""
        began = time.perf_counter()
        try:
            return self.train(configs)
        except FAILURES as error:
            if len(configs) > 1:
                return [trial for number, config in configs.items() for trial in self.run({number: config})]
            (number, config), seconds = next(iter(configs.items())), time.perf_counter() - began
            return [Trial(number, config, float("inf"), seconds, "failed", (number,), str(error))]

    def train(self, configs: dict[int, Config], keep: int | None = None) -> list[Trial]:
        """Train configurations as the members of one classifier; ``keep`` names the one to keep, else the best."""
        began = time.perf_counter()
        lead = EnergyClassifier(**self.base).set_params(**_merge(list(configs.values())))
        train, valid, seed = lead._prepare(*self.data)
        assert valid is not None  # the split depends on nothing that a space may hold
        lead._train(train, valid, seed)
        values = _measure(lead, valid, self.objective)
        seconds, together = (time.perf_counter() - began) / len(configs), tuple(configs)
        trials = []
        for c, (number, config) in enumerate(configs.items()):
            finite = np.isfinite(values[c])
            trial = Trial(
                number,
                config,
                values[c] if finite else float("inf"),
                seconds,
                "complete" if finite else "failed",
                together,
                "" if finite else f"The {self.objective} of the rows held out is not finite.",
            )
            trials.append(trial)
            better = self.best is None or (trial.value, number) < (self.best[0].value, self.best[0].number)
            if number == keep or (keep is None and finite and better):
                self.best = trial, self._alone(lead, c, config, valid)
        return trials

    def _alone(self, lead: EnergyClassifier, c: int, config: Config, valid: LabelledRows) -> EnergyClassifier:
        """Member c as an estimator of its own, as `fit` would leave it."""
        alone = EnergyClassifier(**self.base).set_params(**config)
        for name in ("classes_", "scaler_", "n_features_in_", "feature_names_in_", "n_rounds_"):
            if name in vars(lead):
                setattr(alone, name, getattr(lead, name))
        alone.generative_weights_ = lead.generative_weights_[c : c + 1]
        alone.history_ = {stage: _one(history, c) for stage, history in lead.history_.items()}
        alone.model_ = lead.model_.member(c).float()  # as `_settle` finds it after training
        alone._settle(valid)
        return alone


def _merge(configs: Sequence[Config]) -> Config:
    """The parameters of one classifier whose members are the configurations."""
    if len(configs) == 1:
        return configs[0]
    return {
        name: [config[name] for config in configs] if name in PER_MEMBER else value
        for name, value in configs[0].items()
    }


@torch.no_grad()
def _measure(lead: EnergyClassifier, valid: LabelledRows, objective: str) -> list[float]:
    """The objective of every member, as it is calibrated, on the rows held out."""
    model = lead.model_
    logits = model.calibrated(model.part_energies(valid.v.to(model.B))).double().cpu()  # (C, N, K)
    labels, weight = valid.labels.cpu(), valid.weight.double().cpu()
    if objective == "error":
        wrong = (logits.argmax(-1) != labels).double().masked_fill(~torch.isfinite(logits).all(-1), torch.nan)
        return [float(member @ weight / weight.sum()) for member in wrong]
    zero = logits.new_zeros(logits.shape[-1])
    return [float(negative_log_likelihood(zero, member, labels, weight) / weight.sum()) for member in logits]


def _one(history: History, c: int) -> History:
    """What happened to one of several members."""
    if history.loss and not history.loss[0].ndim:
        return history
    return replace(
        history,
        loss=[losses[c] for losses in history.loss],
        validation=[losses[c] for losses in history.validation],
        best=None if history.best is None else history.best[c],
        best_epoch=None if history.best_epoch is None else history.best_epoch[c],
        diverged=None if history.diverged is None else history.diverged[c],
    )
