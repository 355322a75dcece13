"""Seven questions of one model: every guarantee measured, and what each answer is worth beside what costs nothing.

One JSON line per question, set and seed; finished lines are skipped, so that a run that was stopped goes on.  The
summary is made from the lines alone.  ENERGATE_DATA names the folder that holds tables/*.arff and anomaly/*.npz; the
other sets are scikit-learn's.  Models are memories, which need no training: the guarantees hold for any.

    python benchmarks/questions.py [--questions sets,...] [--sets wine,tae] [--seeds 3] [--minutes 8] [--out FILE]
    python benchmarks/questions.py --summary

cleanlab, a peer of the question about labels, takes ``pip install -r benchmarks/peers.txt``; without it, its rule for
ranking (the normalised margin of out-of-fold probabilities) is computed here from another classifier's.
"""

import argparse
import json
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, ks_2samp
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from table_data import load as load_table

import energate
from energate import EnergyClassifier, EnergyImputer, EnergyScorer

OUT = Path(__file__).parent / "results" / "questions.jsonl"
DATA = Path(os.environ.get("ENERGATE_DATA", "data"))
ALPHAS = (0.05, 0.1, 0.2)
OWN = {"iris": load_iris, "wine": load_wine, "breast": load_breast_cancer, "digits": load_digits}
TABLES = ("column2C", "diabetes", "ionosphere", "segment", "sonar", "vehicle", "vowel")
ANOMALIES = (
    "4_breastw",
    "6_cardio",
    "18_Ionosphere",
    "28_pendigits",
    "30_satellite",
    "37_Stamps",
    "43_WDBC",
    "47_yeast",
)
MOST = 1500  # rows of a set
Array = NDArray[np.float64]
Line = dict[str, Any]


def rows_of(name: str, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """A set of plain numbers with classes, in an order of its own for every seed."""
    if name in OWN:
        X, y = OWN[name](return_X_y=True)
    else:
        table = load_table(DATA / "tables" / f"{name}.arff")
        X, y = (
            table.frame.select_dtypes("number").to_numpy(dtype=np.float64),
            np.unique(table.y, return_inverse=True)[1],
        )
    order = np.random.default_rng(seed).permutation(len(X))[:MOST]
    return X[order], y[order]


def anomalies(name: str, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """Rows, and whether each is an anomaly."""
    with np.load(DATA / "anomaly" / f"{name}.npz") as found:
        X, y = found["X"].astype(np.float64), found["y"].astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(X))[: 2 * MOST]
    return X[order], y[order]


def classifier() -> EnergyClassifier:
    return EnergyClassifier(units="memory", random_state=0, device="cpu")


# --- the questions ---------------------------------------------------------------------------------------------------


def sets(name: str, seed: int) -> Line:
    """Coverage of prediction sets, also of the worst class, and their size; of 20 splits of the rows left."""
    X, y = rows_of(name, seed)
    fit, rest = train_test_split(np.arange(len(X)), test_size=0.6, stratify=y, random_state=seed)
    model = classifier().fit(X[fit], y[fit])
    found: Line = defaultdict(list)
    for split in range(20):
        calibration, test = train_test_split(rest, test_size=0.5, stratify=y[rest], random_state=split)
        model.conformalize(X[calibration], y[calibration])
        for alpha in ALPHAS:
            for kind, per_class in (("", False), ("_per_class", True)):
                if per_class and np.bincount(y[calibration]).min() < 1 / alpha:
                    continue
                chosen = model.predict_set(X[test], alpha, per_class=per_class)
                covered = chosen[np.arange(len(test)), y[test]]
                found[f"coverage_{alpha}{kind}"].append(float(covered.mean()))
                found[f"worst_{alpha}{kind}"].append(float(min(covered[y[test] == k].mean() for k in np.unique(y))))
                found[f"size_{alpha}{kind}"].append(float(chosen.sum(1).mean()))
    line = {key: float(np.mean(values)) for key, values in found.items()}
    return {
        **line,
        "n_test": len(rest) // 2,
        "n_calibration": len(rest) - len(rest) // 2,
        "error": error(model, X, y, rest),
    }


def error(model: Any, X: Array, y: Any, rows: Any) -> float:
    return float((model.predict(X[rows]) != y[rows]).mean())


def strange(name: str, seed: int) -> Line:
    """p-values of normal rows, and false discoveries and power among normal rows and anomalies."""
    X, y = anomalies(name, seed)
    normal, odd = np.flatnonzero(y == 0), np.flatnonzero(y == 1)
    fit, calibration, test = np.array_split(normal, [int(0.4 * len(normal)), int(0.7 * len(normal))])
    model = EnergyScorer(random_state=0, device="cpu").fit(X[fit]).conformalize(X[calibration])
    p = model.p_values(X[test])
    batch = np.concatenate([test, odd[: max(5, len(test) // 5)]])
    line: Line = {f"below_{alpha}": float((p <= alpha).mean()) for alpha in (0.01, *ALPHAS)}
    for fdr in (0.1, 0.2):
        flagged = model.predict(X[batch], fdr=fdr) == -1
        wrong = y[batch][flagged] == 0
        line |= {f"fdr_{fdr}": float(wrong.mean()) if len(wrong) else 0.0}
        line |= {f"power_{fdr}": float(flagged[y[batch] == 1].mean())}
    # What costs nothing: rows outside the range of any column of the rows of `fit`.
    outside = ((X[batch] < X[fit].min(0)) | (X[batch] > X[fit].max(0))).any(1)
    line["fdr_range"] = float((y[batch][outside] == 0).mean()) if outside.any() else 0.0
    return {**line, "power_range": float(outside[y[batch] == 1].mean()), "n_test": len(test)}


def parts(name: str, seed: int) -> Line:
    """How far attributions are from adding up, and whether they find the column that was spoilt."""
    X, y = rows_of(name, seed)
    model = classifier().fit(X[: len(X) // 2], y[: len(X) // 2])
    rows = X[len(X) // 2 :][:100].copy()
    rng = np.random.default_rng(seed)
    spoilt = rng.integers(0, X.shape[1], len(rows))
    before = rows.copy()
    rows[np.arange(len(rows)), spoilt] += 5 * X.std(0)[spoilt] * rng.choice([-1, 1], len(rows))
    moved = rows[np.arange(len(rows)), spoilt] != before[np.arange(len(rows)), spoilt]
    found = energate.attribute(model, rows)
    missed = np.abs(found.parts.sum(1) - found.total) / np.abs(found.total)
    largest = np.abs((rows - np.median(X, 0)) / (X.std(0) + 1e-12)).argmax(1)  # what costs nothing
    return {
        "adds_up_to": float(missed.max()),
        "lowest_is_spoilt": float((found.parts.argmin(1) == spoilt)[moved].mean()),
        "furthest_is_spoilt": float((largest == spoilt)[moved].mean()),
    }


def missing(name: str, seed: int) -> Line:
    """Errors of cells that are hidden, in spreads of the columns; 20 % of all, of rows that no imputer saw."""
    X, _ = rows_of(name, seed)
    keep = X.std(0) > 0
    X = StandardScaler().fit_transform(X[:, keep])
    rng = np.random.default_rng(seed)
    hidden = rng.random(X.shape) < 0.2
    given = np.where(hidden, np.nan, X)
    train, test = np.arange(len(X)) % 2 == 0, np.arange(len(X)) % 2 == 1
    systems: dict[str, Any] = {
        "mean": SimpleImputer(keep_empty_features=True),
        "KNNImputer": KNNImputer(keep_empty_features=True),
        "IterativeImputer": IterativeImputer(random_state=0, keep_empty_features=True, max_iter=5),
        "EnergyImputer": EnergyImputer(random_state=0, device="cpu"),
    }
    line: Line = {}
    for key, system in systems.items():
        began = time.process_time()
        found = system.fit(given[train]).transform(given[test])
        wrong = (found - X[test])[hidden[test]]
        line[key] = float(np.sqrt((wrong**2).mean()))
        line[f"{key}_seconds"] = time.process_time() - began
        assert (found[~hidden[test]] == X[test][~hidden[test]]).all()
    return line


def labels(name: str, seed: int) -> Line:
    """Planted errors among the first so many of the ranking, and AUC."""
    X, y = rows_of(name, seed)
    n_classes, line = int(y.max()) + 1, {}
    for share in (0.05, 0.1, 0.2):
        rng = np.random.default_rng(seed)
        wrong = rng.random(len(y)) < share
        given = np.where(wrong, (y + rng.integers(1, n_classes, len(y))) % n_classes, y)
        if np.bincount(given, minlength=n_classes).min() < 5:
            continue
        scores = {"energy": energate.label_errors(classifier(), X, given).scores}
        for key, peer in (
            ("logistic", make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))),
            ("boosting", HistGradientBoostingClassifier(max_iter=60, random_state=0)),
        ):
            p = cross_val_predict(peer, X, given, cv=5, method="predict_proba")
            scores[f"margin_{key}"] = normalised_margin(p, given)
            if (quality := cleanlab_scores()) is not None and key == "boosting":
                scores["cleanlab_boosting"] = quality(given, p)
        for key, values in scores.items():
            first = np.argsort(values)[: wrong.sum()]
            line[f"{key}_precision_{share}"] = float(wrong[first].mean())
            line[f"{key}_auc_{share}"] = float(roc_auc_score(wrong, -values))
    return line


def normalised_margin(p: Array, given: Any) -> Array:
    """cleanlab's: the probability of the given class less that of the best other."""
    own = p[np.arange(len(p)), given]
    others = p.copy()
    others[np.arange(len(p)), given] = -1
    return own - others.max(1)


def cleanlab_scores() -> Callable[..., Array] | None:
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        return None
    found: Callable[..., Array] = get_label_quality_scores
    return found


def drift(name: str, seed: int) -> Line:
    """False alarms and power of batches of 100 rows, beside a KS test of every column with Bonferroni's correction."""
    X, _ = rows_of(name, seed)
    fit, calibration, rest = np.array_split(X, [len(X) // 3, 2 * len(X) // 3])
    model, rng = (
        EnergyScorer(random_state=0, device="cpu").fit(fit).conformalize(calibration),
        np.random.default_rng(seed),
    )
    line: Line = {}
    spread = X.std(0)

    def moved(kind: str, rows: Array) -> Array:
        if kind == "none":
            return rows
        if kind == "one column":
            return rows + spread * (np.arange(X.shape[1]) == rng.integers(X.shape[1]))
        if kind == "noise":
            return rows + 0.5 * spread * rng.normal(size=rows.shape)
        return np.stack([rng.permutation(column) for column in rows.T], 1)  # columns no longer go together

    for kind in ("none", "one column", "noise", "shuffled"):
        alarms, by_columns = [], []
        for _ in range(20):
            batch = moved(kind, rest[rng.choice(len(rest), min(100, len(rest)), replace=False)])
            energies = model.score_samples(batch)
            alarms.append(ks_2samp(energies, model.held_out_).pvalue <= 0.05)
            p = min(ks_2samp(a, b).pvalue for a, b in zip(batch.T, calibration.T, strict=True))
            by_columns.append(p <= 0.05 / X.shape[1])
        line |= {f"energy_{kind}": float(np.mean(alarms)), f"columns_{kind}": float(np.mean(by_columns))}
    return line


def change(name: str, seed: int) -> Line:
    """How often a row becomes the second-best class, in how many columns and how far, beside the nearest row of it."""
    X, y = rows_of(name, seed)
    half = len(X) // 2
    model = classifier().fit(X[:half], y[:half])
    rows = X[half:][:30]
    target = np.argsort(-model.predict_proba(rows), 1)[:, 1]
    scaled = model.scaler_(X[:half])
    found, columns, length, nearest = [], [], [], []
    for x, k in zip(rows, target, strict=True):
        one = energate.counterfactual(model, x[None], target=k, rows=X[:half])
        found.append(bool(one.found[0]) and model.predict(one.rows)[0] == k)
        nearest.append(np.linalg.norm(scaled[y[:half] == k] - model.scaler_(x[None]), axis=1).min())
        columns.append(one.changed.sum())
        length.append(one.distance[0])
    good = np.array(found)
    return {
        "found": float(good.mean()),
        "columns": float(np.array(columns)[good].mean()),
        "of": int(X.shape[1]),
        "distance": float(np.array(length)[good].mean()),
        "nearest_row": float(np.array(nearest)[good].mean()),
    }


QUESTIONS: dict[str, tuple[Callable[[str, int], Line], tuple[str, ...]]] = {
    "sets": (sets, (*OWN, "segment", "vehicle", "vowel", "diabetes", "ionosphere", "column2C")),
    "strange": (strange, ANOMALIES),
    "parts": (parts, (*OWN, *TABLES)),
    "missing": (missing, (*OWN, *TABLES)),
    "labels": (labels, (*OWN, *TABLES)),
    "drift": (drift, (*OWN, *TABLES)),
    "change": (change, (*OWN, *TABLES)),
}


# --- lines and the summary -------------------------------------------------------------------------------------------


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(asked: argparse.Namespace) -> None:
    until = time.time() + 60 * asked.minutes
    done = {(line["question"], line["set"], line["seed"]) for line in read(asked.out)}
    asked.out.parent.mkdir(exist_ok=True)
    for seed in range(asked.seeds):
        for question in asked.questions.split(","):
            measure, names = QUESTIONS[question]
            for name in names if asked.sets is None else [each for each in names if each in asked.sets.split(",")]:
                if (question, name, seed) in done or time.time() > until:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    line = {"question": question, "set": name, "seed": seed, **measure(name, seed)}
                with asked.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(question, name, seed, flush=True)


def summary(lines: list[Line]) -> str:
    """Tables of Markdown: for every question the mean over sets, and the spread over sets of the means over seeds."""
    text = []
    for question in QUESTIONS:
        mine = [line for line in lines if line["question"] == question]
        if not mine:
            continue
        names = sorted({line["set"] for line in mine})
        keys = list(dict.fromkeys(key for line in mine for key in line if key not in ("question", "set", "seed")))
        text += [f"\n{question}: {len(names)} sets, {len({line['seed'] for line in mine})} seeds\n"]
        text += ["| | mean | spread over sets | lowest | highest |", "|---|---|---|---|---|"]
        for key in keys:
            per_set = [[line[key] for line in mine if line["set"] == name and key in line] for name in names]
            values = np.array([np.mean(each) for each in per_set if each])
            number = [f"{value:.3g}" for value in (values.mean(), values.std(), values.min(), values.max())]
            text.append(f"| {key} | {' | '.join(number)} |")
    return "\n".join([*text, *bands([line for line in lines if line["question"] == "sets"])])


def bands(lines: list[Line]) -> list[str]:
    """How many sets have a coverage, a mean over splits, in the binomial band of a split's rows."""
    text = []
    for alpha in ALPHAS if lines else ():
        inside = []
        for line in lines:
            low, high = binom.ppf([0.005, 0.995], line["n_test"], 1 - alpha) / line["n_test"]
            inside.append(low <= line[f"coverage_{alpha}"] <= high + 1 / line["n_calibration"])
        text.append(f"\ncoverage at alpha {alpha}: {sum(inside)} of {len(inside)} within the 99 % band of one split")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", default=",".join(QUESTIONS))
    parser.add_argument("--sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--summary", action="store_true")
    asked = parser.parse_args()
    if asked.summary:
        print(summary(read(asked.out)))
    else:
        run(asked)


if __name__ == "__main__":
    main()
