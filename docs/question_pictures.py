"""Draws docs/images/questions.svg, the pictures of docs/questions.md: `python docs/question_pictures.py`.

One real table, scikit-learn's breast cancer, from beginning to end.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.model_selection import train_test_split

import energate
from energate import EnergyClassifier, EnergyImputer, EnergyScorer

PICTURE = Path(__file__).parent / "images" / "questions.svg"
BLUE, ORANGE, GREY = "#3b6ea5", "#d9822b", "#9aa5b1"


def main() -> None:
    """Fit, ask, draw."""
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "energate", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False}
    from matplotlib.figure import Figure

    data = load_breast_cancer()
    X, y, names = data.data, data.target, data.feature_names
    figure = Figure(figsize=(9.5, 5.6), layout="constrained")
    axes = figure.subplots(2, 3)
    _coverage(axes[0, 0], X, y)
    _p_values(axes[0, 1], X, y)
    _parts(axes[0, 2], X, y, names)
    _missing(axes[1, 0], X)
    _labels(axes[1, 1], X, y)
    _drift(axes[1, 2], X, y)
    figure.savefig(PICTURE, metadata={"Date": None})


def _split(X: np.ndarray, y: np.ndarray, seed: int) -> list[np.ndarray]:
    fit, rest = train_test_split(np.arange(len(X)), test_size=0.6, stratify=y, random_state=seed)
    return [fit, *train_test_split(rest, test_size=0.5, stratify=y[rest], random_state=seed)]


def _memory() -> EnergyClassifier:
    return EnergyClassifier(units="memory", random_state=0, device="cpu")


def _coverage(ax, X, y) -> None:  # type: ignore[no-untyped-def]
    alphas, found = (0.02, 0.05, 0.1, 0.2, 0.3), []
    for seed in range(10):
        fit, calibration, test = _split(X, y, seed)
        model = _memory().fit(X[fit], y[fit]).conformalize(X[calibration], y[calibration])
        found.append([model.predict_set(X[test], a)[np.arange(len(test)), y[test]].mean() for a in alphas])
    wanted = 1 - np.array(alphas)
    ax.plot([0.65, 1], [0.65, 1], color=GREY, linewidth=0.8)
    ax.errorbar(wanted, np.mean(found, 0), np.std(found, 0), fmt="o", color=BLUE, markersize=4)
    ax.set(title="sets: coverage, 10 splits", xlabel="asked for, 1 - alpha", ylabel="rows in their sets")


def _p_values(ax, X, y) -> None:  # type: ignore[no-untyped-def]
    benign, malignant = X[y == 1], X[y == 0]
    fit, calibration, test = np.array_split(np.random.default_rng(0).permutation(len(benign)), 3)
    model = EnergyScorer(random_state=0, device="cpu").fit(benign[fit]).conformalize(benign[calibration])
    bins = np.linspace(0, 1, 11)
    both = [model.p_values(benign[test]), model.p_values(malignant)]
    ax.hist(both, bins, density=True, color=[BLUE, ORANGE], label=["benign", "malignant"])
    ax.axhline(1, color=GREY, linewidth=0.8)
    ax.legend(frameon=False)
    ax.set(title="strange: p-values, fitted on benign rows", xlabel="p-value", ylabel="density")


def _parts(ax, X, y, names) -> None:  # type: ignore[no-untyped-def]
    fit, _, test = _split(X, y, 0)
    model = _memory().fit(X[fit], y[fit])
    found = energate.attribute(model, X[test][:1], target=tuple(model.classes_[::-1]), reference="mean")
    order = np.argsort(-np.abs(found.parts[0]))[:8]
    ax.barh(np.arange(8), found.parts[0, order], color=BLUE)
    ax.set_yticks(np.arange(8), [str(names[i]) for i in order], fontsize=7)
    ax.invert_yaxis()
    ax.axvline(0, color="black", linewidth=0.6)
    ax.set(title="why benign and not malignant: parts add up", xlabel=f"energy; all together {found.total[0]:+.1f}")


def _missing(ax, X) -> None:  # type: ignore[no-untyped-def]
    Z, rng, shares = (X - X.mean(0)) / X.std(0), np.random.default_rng(0), (0.1, 0.2, 0.3, 0.5)
    systems = {
        "mean": (SimpleImputer(), GREY),
        "KNNImputer": (KNNImputer(), "#5b8c4a"),
        "IterativeImputer": (IterativeImputer(random_state=0, max_iter=5, tol=1e-1), ORANGE),
        "EnergyImputer": (EnergyImputer(random_state=0, device="cpu"), BLUE),
    }
    errors: dict[str, list[float]] = {name: [] for name in systems}
    for share in shares:
        hidden = rng.random(Z.shape) < share
        given = np.where(hidden, np.nan, Z)
        for name, (system, _) in systems.items():
            found = system.fit(given[::2]).transform(given[1::2])
            errors[name].append(float(np.sqrt(((found - Z[1::2])[hidden[1::2]] ** 2).mean())))
    for name, (_, colour) in systems.items():
        ax.plot(shares, errors[name], "o-", color=colour, label=name, markersize=3)
    ax.legend(frameon=False, fontsize=7)
    ax.set(title="missing cells: error, in spreads", xlabel="share of cells that are missing", ylim=(0, None))


def _labels(ax, X, y) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.1
    found = energate.label_errors(_memory(), X, np.where(wrong, 1 - y, y))
    hits = np.cumsum(wrong[found.order])
    ax.plot(np.arange(1, len(y) + 1), hits / wrong.sum(), color=BLUE)
    ax.plot([0, wrong.sum(), len(y)], [0, 1, 1], color=GREY, linewidth=0.8)
    ax.set(title=f"wrong labels: {wrong.sum()} planted", xlabel="rows looked at, by rank", ylabel="share found")


def _drift(ax, X, y) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    benign = X[y == 1][rng.permutation((y == 1).sum())]
    model = EnergyScorer(random_state=0, device="cpu").fit(benign[:120]).conformalize(benign[120:240])
    p = []
    for batch in range(12):
        rows = benign[240:][rng.choice(len(benign) - 240, 60)]
        share = max(0, batch - 5) * 0.05  # from the sixth batch on, more and more rows of the other kind
        other = rng.random(60) < share
        rows[other] = X[y == 0][rng.choice((y == 0).sum(), int(other.sum()))]
        p.append(energate.drift(model, rows).p_value)
    ax.semilogy(np.arange(1, 13), p, "o-", color=BLUE, markersize=4)
    ax.axhline(0.05, color=ORANGE, linewidth=0.8)
    ax.axvline(6.5, color=GREY, linewidth=0.8, linestyle=":")
    ax.set(title="drift: batches of 60; from the 7th, others mixed in", xlabel="batch", ylabel="p-value")


if __name__ == "__main__":
    main()
