"""What the energy of label vectors is worth: noise in its training, against counts alone, and for finding wrong labels.

One JSON line per case, data set, split and system; what the file already holds is not computed again.

    ENERGATE_DATA=FOLDER python benchmarks/labels.py [--cases noise counts wrong] [--splits 5] [--out FILE]
    python benchmarks/labels.py --markdown [--out FILE]

Rows are split 80, 10 and 10 % by `energate.datasets.split_rows`.  The base is a logistic regression for each label; its
scores of training rows are those of five folds, from copies that have not seen them.  All systems of a split start from
the same scores, so that differences are paired.

- noise: ascent in the energy, trained under no noise, Gaussian noise on y, on x, or on both; the number of steps is
  chosen on the validation rows, 0 allowed.  ``error`` is the share of wrong labels, ``forced`` the same after
  `FORCED` steps whatever the validation rows say.
- counts: `LogCountProjection`, which learns nothing but counts, against `EnergyRefiner`, with all training rows and
  with few.  ``unseen`` is the share of test rows whose label vector is not in the training rows, ``error_unseen``
  the share of labels that are wrong there.
- wrong: one label of some training rows is turned round; how well the lowest energies point at these rows (ROC AUC).
  Controls are the base's own log-likelihood of the labels, and the log-probability of the label vector before anything
  is trained: counts, and an energy near 0.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import roc_auc_score

from energate import EnergyRefiner
from energate.datasets import load_multilabel, make_correlated_labels, split_rows
from energate.estimators.bases import CrossFitted, calibrated, label_scores, out_of_fold
from energate.paper.baselines import LogCountProjection, logistic_labels
from energate.training.labels import LabelRows, LabelTraining, ascend, blurred, label_autoencoder, train_denoising

Array = NDArray[Any]
Line = dict[str, Any]
RESULTS = Path(__file__).parent / "results" / "labels-cpu.jsonl"
UNITS, EPOCHS, STEPS, FORCED = 32, 40, (0, 1, 2, 3, 5, 10, 20), 10
TRAINING = LabelTraining(EPOCHS, learning_rate=6e-3, weight_decay=0.01, batch_size=256)
NOISE_Y, NOISE_X = 0.5, 0.5  # standard deviations, for labels of 0 and 1 and columns of standard deviation 1
NOISES = {"no noise": (0.0, 0.0), "on y": (NOISE_Y, 0.0), "on x": (0.0, NOISE_X), "on both": (NOISE_Y, NOISE_X)}
RELATIONS = {"xy": "GAES_XY", "yy": "GAES_Y2"}
FEW, SHARES = 300, (0.05, 0.1)
SETS = {
    "noise": ("yeast", "scene", "generated"),
    "counts": ("yeast", "scene", "generated", "medical", "cal500"),
    "wrong": ("yeast", "scene"),
}


class Split(NamedTuple):
    """Rows of a part: standardised columns, the base's scores of rows it has not seen, and labels."""

    x: Array
    scores: Array
    Y: Array


class Given(ClassifierMixin, CrossFitted, BaseEstimator):  # type: ignore[misc]
    """A base whose scores are known: they are the last columns of X."""

    def fit(self, X: Array, Y: Array) -> Self:
        self.n_labels_ = Y.shape[1]
        self.out_of_fold_ = self.decision_function(X)
        return self

    def decision_function(self, X: Array) -> Array:
        """The scores, (n, L)."""
        return X[:, -self.n_labels_ :]

    def predict_proba(self, X: Array) -> Array:
        """The probabilities that they are the logits of, (n, L)."""
        return torch.as_tensor(self.decision_function(X)).sigmoid().numpy()


def load(name: str) -> tuple[Array, Array]:
    if name == "generated":
        made = make_correlated_labels(2400, n_features=20, n_labels=10, n_vectors=40, sharpness=4.0, seed=1)
        return made.X.astype(np.float64), made.Y.astype(np.float64)
    data = load_multilabel(name)
    return data.X.astype(np.float64), data.Y.astype(np.float64)


def parts(
    name: str, seed: int, n_train: int | None = None, spoil: Callable[[Array], Array] | None = None
) -> list[Split]:
    """Training, validation and test rows; labels that the training rows do not vary in are left out."""
    X, Y = load(name)
    numbers = list(split_rows(len(X), seed))
    numbers[0] = numbers[0][:n_train]
    train = numbers[0]
    Y = Y[:, np.ptp(Y[train], axis=0) > 0]
    known = Y[train] if spoil is None else spoil(Y[train])
    base = logistic_labels(C=0.03)
    unseen = out_of_fold(base, X[train], known, 5, seed)
    base.fit(X[train], known)
    centre, size = X[train].mean(0), X[train].std(0)
    x = np.clip((X - centre) / np.where(size > 1e-9, size, 1.0), -8, 8)
    others = [label_scores(base, X[rows], Y.shape[1]) for rows in numbers[1:]]
    labels = [known, *(Y[rows] for rows in numbers[1:])]
    return [Split(x[r], t, y) for r, t, y in zip(numbers, [unseen, *others], labels, strict=True)]


# --- the three cases -----------------------------------------------------------------------------------------------


def noise(name: str, seed: int) -> Iterable[Line]:
    split = parts(name, seed)
    slope, offset = calibrated(split[0].scores, split[0].Y)
    rows = [
        LabelRows(
            *(torch.as_tensor(each, dtype=torch.float32) for each in (slope * part.scores + offset, part.Y, part.x))
        )
        for part in split
    ]
    train, valid, test = rows
    yield {"system": "base", "error": wrong_labels(test.t, test)}
    for relation, energy in RELATIONS.items():
        for label, (on_y, on_x) in NOISES.items():
            if relation == "yy" and on_x:
                continue  # it never sees x
            sizes = (train.Y.shape[1], train.x.shape[1], UNITS, UNITS)
            model = label_autoencoder(relation, *sizes, torch.Generator().manual_seed(seed))
            training = replace(TRAINING, seed=seed)
            train_denoising(model, train, valid, training, on_y, noise=blurred, context_noise=on_x)
            with torch.no_grad():
                on_valid, on_test = (ascend(model, part.t, part.x, STEPS) for part in (valid, test))
            errors = [wrong_labels(t, valid) for t in on_valid]
            best = int(np.argmin(errors))  # of equals the fewest steps
            yield {
                "system": energy,
                "noise": label,
                "steps": STEPS[best],
                "error": wrong_labels(on_test[best], test),
                "forced": wrong_labels(on_test[STEPS.index(FORCED)], test),
            }


def wrong_labels(t: torch.Tensor, rows: LabelRows) -> float:
    """In percent."""
    return round(100 * float(((t > 0) != (rows.Y > 0.5)).double().mean()), 4)


def counts(name: str, seed: int) -> Iterable[Line]:
    for n_train in (None, FEW):
        train, _, test = parts(name, seed, n_train)
        X, X_test = (np.hstack([part.x, part.scores]) for part in (train, test))
        seen = {row.tobytes() for row in train.Y}
        unseen = np.array([row.tobytes() not in seen for row in test.Y])
        about = {"n_train": len(X), "rows": "few" if n_train else "all", "labels": test.Y.shape[1]}
        about |= {"sets": len(seen), "unseen": round(100 * float(unseen.mean()), 2)}
        models: dict[str, Any] = {"base": None}
        for objective in ("hamming", "subset"):
            models[f"counts, {objective}"] = LogCountProjection(Given(), objective=objective, random_state=seed)
            for relation, title in RELATIONS.items():
                models[f"{title}, {objective}"] = EnergyRefiner(
                    Given(), relation, objective=objective, device="cpu", random_state=seed
                )
        for system, model in models.items():
            began = time.process_time()
            found = test.scores > 0 if model is None else model.fit(X, train.Y).predict(X_test) > 0
            errors = found != (test.Y > 0)
            yield about | {
                "system": system,
                "error": round(100 * float(errors.mean()), 4),
                "error_sets": round(100 * float(errors.any(1).mean()), 4),
                "error_unseen": round(100 * float(errors[unseen].mean()), 4) if unseen.any() else None,
                "cpu_seconds": round(time.process_time() - began, 1),
            }


def wrong(name: str, seed: int) -> Iterable[Line]:
    for share in SHARES:
        spoiled: list[int] = []

        def spoil(Y: Array, share: float = share, spoiled: list[int] = spoiled) -> Array:
            rng = np.random.default_rng(seed)
            spoiled += rng.choice(len(Y), round(share * len(Y)), replace=False).tolist()
            Y = Y.copy()
            label = rng.integers(0, Y.shape[1], len(spoiled))
            Y[spoiled, label] = 1 - Y[spoiled, label]
            return Y

        train = parts(name, seed, spoil=spoil)[0]
        X, truth = np.hstack([train.x, train.scores]), np.zeros(len(train.Y), dtype=int)
        truth[spoiled] = 1
        slope, offset = calibrated(train.scores, train.Y)
        t = slope * train.scores + offset
        liking = {"base's log-likelihood": -np.logaddexp(0, (1 - 2 * train.Y) * t).sum(1)}
        systems = {"counts": ("yy", 0), **{title: (relation, 24) for relation, title in RELATIONS.items()}}
        for title, (relation, epochs) in systems.items():
            model = EnergyRefiner(Given(), relation, max_epochs=epochs, device="cpu", random_state=seed)
            liking[f"log-probability, {title}"] = model.fit(X, train.Y).label_energy(X, train.Y)
        model = EnergyRefiner(Given(), "yy", method="ascent", device="cpu", random_state=seed).fit(X, train.Y)
        liking["energy alone, GAES_Y2"] = model.label_energy(X, train.Y)
        for system, values in liking.items():
            yield {"share": share, "system": system, "auc": round(100 * float(roc_auc_score(truth, -values)), 3)}


CASES = {"noise": noise, "counts": counts, "wrong": wrong}

# --- tables --------------------------------------------------------------------------------------------------------


def paired(ours: dict[int, float], theirs: dict[int, float]) -> str:
    """The mean difference over splits, and its standard error."""
    both = sorted(ours.keys() & theirs.keys())
    gaps = np.array([ours[seed] - theirs[seed] for seed in both])
    error = gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else np.nan
    return f"{gaps.mean():+.2f} ± {error:.2f}"


def mean(values: dict[int, float]) -> str:
    return f"{np.mean(list(values.values())):.2f}"


def by(lines: list[Line], *keys: str, value: str) -> dict[tuple[Any, ...], dict[int, float]]:
    """Values by split, for each combination of the keys."""
    found: dict[tuple[Any, ...], dict[int, float]] = defaultdict(dict)
    for line in lines:
        if line.get(value) is not None:
            found[tuple(line.get(key) for key in keys)][line["split"]] = line[value]
    return found


def header(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def noise_table(lines: list[Line]) -> list[str]:
    rows = header("set", "energy", "no noise, less base", *(f"{label}, less no noise" for label in list(NOISES)[1:]))
    for what, title in (("error", "steps as chosen"), ("forced", f"{FORCED} steps")):
        values = by(lines, "data", "system", "noise", value=what)
        base = by(lines, "data", "system", value="error")
        for name in SETS["noise"]:
            for energy in RELATIONS.values():
                plain = values.get((name, energy, "no noise"))
                if plain:
                    others = [values.get((name, energy, label)) for label in list(NOISES)[1:]]
                    cells = [paired(plain, base[name, "base"]), *(paired(o, plain) if o else "" for o in others)]
                    rows.append(f"| {name}, {title} | {energy} | {' | '.join(cells)} |")
    return rows


def counts_table(lines: list[Line]) -> list[str]:
    rows = header(
        "set, training rows",
        "labels",
        "unseen %",
        "measure",
        "base",
        "counts",
        *(f"{e}, less counts" for e in RELATIONS.values()),
    )
    measures = (("error", "hamming", "wrong labels"), ("error_sets", "subset", "wrong rows"))
    for name in SETS["counts"]:
        for size in ("all", "few"):
            some = [line for line in lines if line["data"] == name and line["rows"] == size]
            if not some:
                continue
            about = some[0]
            unseen = mean(by(some, "data", value="unseen")[(name,)])
            for what, objective, title in (*measures, ("error_unseen", "hamming", "wrong labels, unseen")):
                values = {key[0]: each for key, each in by(some, "system", value=what).items()}
                plain = values.get(f"counts, {objective}")
                if plain and len(plain) > 1:
                    cells = [mean(values["base"]), mean(plain)]
                    cells += [paired(values[f"{e}, {objective}"], plain) for e in RELATIONS.values()]
                    rows.append(
                        f"| {name}, {about['n_train']} | {about['labels']} | {unseen} | {title} | {' | '.join(cells)} |"
                    )
    return rows


def wrong_table(lines: list[Line]) -> list[str]:
    values = by(lines, "data", "share", "system", value="auc")
    systems = list(dict.fromkeys(line["system"] for line in lines))
    base, control, *others = systems
    rows = header("set", "rows spoiled", base, control, *(f"{system}, less counts" for system in others))
    for name in SETS["wrong"]:
        for share in SHARES:
            if plain := values.get((name, share, control)):
                cells = [mean(values[name, share, base]), mean(plain)]
                cells += [paired(values[name, share, system], plain) for system in others]
                rows.append(f"| {name} | {100 * share:.0f} % | {' | '.join(cells)} |")
    return rows


TABLES = {"noise": noise_table, "counts": counts_table, "wrong": wrong_table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--markdown", action="store_true", help="print the tables of the file and compute nothing")
    options = parser.parse_args()
    lines = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    if options.markdown:
        for case in options.cases:
            some = [line for line in lines if line["case"] == case]
            print("\n".join(TABLES[case](some)) + "\n" if some else f"No lines of the case {case}.\n")
        return
    torch.set_num_threads(1)
    done = {(line["case"], line["data"], line["split"]) for line in lines}
    for seed in range(options.splits):
        for case in options.cases:
            for name in SETS[case]:
                if (case, name, seed) not in done:
                    found = [{"case": case, "data": name, "split": seed} | line for line in CASES[case](name, seed)]
                    with options.out.open("a") as file:  # all lines of a split at once, so that none is half done
                        file.write("".join(json.dumps(line) + "\n" for line in found))
                    print(case, name, seed, flush=True)


if __name__ == "__main__":
    main()
