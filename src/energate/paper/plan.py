"""The tables: which data sets, which systems, what was published.  Nothing here runs anything."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of results: data sets x systems, and the test errors (%) that the paper prints."""

    name: str
    title: str
    data: tuple[str, ...]
    systems: dict[str, str]  # name -> heading
    ours: tuple[str, ...]
    apart: dict[str, str]  # systems that are not compared with the others, and why
    published: dict[str, dict[str, float]]
    labels: bool = False  # rows have several labels
    repeat: str = "seed"  # what the cells of one system on one data set are told apart by
    left_out: frozenset[tuple[str, str]] = frozenset()  # data sets and systems that would take hours together


@dataclass(frozen=True)
class Profile:
    """How much of a table is run."""

    name: str
    about: str
    data: tuple[str, ...] | None  # None: all of the table's
    seeds: int
    search: bool  # whether hyper-parameters are chosen on the validation rows, or fixed
    every: int  # of the test rows, one in so many is used
    label_data: tuple[str, ...] | None = None  # as `data`, for tables whose rows have several labels
    splits: int = 10

    def data_of(self, table: Table) -> tuple[str, ...]:
        """The data sets of a table that are run."""
        return (self.label_data if table.labels else self.data) or table.data

    def repeats(self, table: Table) -> int:
        """How many seeds, or splits."""
        return self.splits if table.labels else self.seeds


_COLUMNS = ("svm", "rbm", "saa3", "gsm", "aes", "caes", "mcaes")
#: Table 1 of the paper (`mcaes_err`), test error in %
_PUBLISHED = {
    "rectangles": (2.15, 4.71, 2.14, 0.56, 0.84, 0.61, 0.54),
    "rectangles-images": (24.04, 23.69, 24.05, 22.51, 21.45, 22.85, 21.41),
    "convex": (19.13, 19.92, 18.41, 17.08, 21.52, 21.6, 20.63),
    "mnist-small": (3.03, 3.94, 3.46, 3.70, 2.61, 3.65, 3.65),
    "mnist-rotated": (11.11, 14.69, 10.30, 11.75, 11.25, 16.5, 13.42),
    "mnist-random": (14.58, 9.80, 11.28, 10.48, 9.70, 18.65, 16.73),
    "mnist-rotated-images": (55.18, 52.21, 51.93, 55.16, 47.14, 39.98, 35.52),
}

_TABLE1 = Table(
    name="table1",
    title="Classification error on the deep learning benchmark",
    data=tuple(_PUBLISHED),
    systems={
        "svm": "SVM",
        "rbm": "RBM",
        "saa3": "SAA-3",
        "gsm": "GSM",
        "aes": "AES",
        "caes": "cAES",
        "mcaes": "mcAES",
        "mlp": "MLP",
        "deep": "deep",
    },
    ours=("aes", "caes", "mcaes", "deep"),
    apart={"deep": "it sees the image grid"},
    published={name: dict(zip(_COLUMNS, errors, strict=True)) for name, errors in _PUBLISHED.items()},
)

_ABLATION = Table(
    name="ablation",
    title="What calibration, fine-tuning and the hybrid loss do, one classifier each, and the paper's own recipe",
    data=("rectangles-images", "convex", "mnist-small", "mnist-rotated", "mnist-random"),
    systems={
        f"{units}-{variant}": f"{label}, {words}"
        for units, label in (("aes", "AES"), ("caes", "cAES"), ("mcaes", "mcAES"))
        for variant, words in (
            ("calibrated", "calibrated only"),
            ("discriminative", "fine-tuned, no denoising loss"),
            ("hybrid", "fine-tuned with it"),
            ("paper", "the paper's recipe"),
            ("printed", "its covariance score as printed"),
        )
        if variant != "printed" or units == "caes"
    },
    ours=(),
    apart={},
    published={},
)

_LABEL_SYSTEMS = {
    "logreg": "LogReg",
    "hashcrbm": "HashCRBM",
    "mlp": "MLP",
    "gaes-xy": "GAES_XY",
    "gaes-y2": "GAES_Y2",
    "sets-xy": "MLP, sets XY",
    "sets-y2": "MLP, sets Y2",
    "sets-y2-subset": "MLP, sets Y2, best set",
    "projection": "MLP, counts",
    "projection-subset": "MLP, counts, best set",
    "svm": "SVM",
    "svm-sets-y2": "SVM, sets Y2",
    "svm-sets-y2-subset": "SVM, sets Y2, best set",
    "mean": "MLP + SVM",
    "mean-sets-xy": "MLP + SVM, sets XY",
    "mean-sets-y2": "MLP + SVM, sets Y2",
    "mean-sets-y2-subset": "MLP + SVM, sets Y2, best set",
    "chains": "chains",
    "mlknn": "ML-kNN",
    "boosting": "boosting",
    "logreg-sets-y2": "LogReg, sets Y2",
    "logreg-sets-y2-subset": "LogReg, sets Y2, best set",
}

_TABLE2 = Table(
    name="table2",
    title="Several labels at once: mean per-label error, and what refining changes",
    data=("yeast", "scene", "majorminer", "cal500", "medical", "enron", "corel5k", "correlated"),
    systems=_LABEL_SYSTEMS,
    ours=(
        *("logreg-sets-y2", "logreg-sets-y2-subset", "gaes-xy", "gaes-y2", "sets-xy", "sets-y2", "sets-y2-subset"),
        *("svm-sets-y2", "svm-sets-y2-subset", "mean-sets-xy", "mean-sets-y2", "mean-sets-y2-subset"),
    ),
    apart={},
    published={  # Table 2 of the paper, for the two sets that are the same ones
        "yeast": {"logreg": 20.16, "hashcrbm": 20.02, "mlp": 19.79, "gaes-xy": 19.27, "gaes-y2": 19.58},
        "scene": {"logreg": 10.11, "hashcrbm": 8.80, "mlp": 8.99, "gaes-xy": 6.83, "gaes-y2": 6.81},
    },
    labels=True,
    repeat="split",
    left_out=frozenset(
        ("corel5k", name) for name in _LABEL_SYSTEMS if name.split("-")[0] in ("svm", "mean", "boosting")
    ),
)

#: The tables by name.
TABLES = {table.name: table for table in (_TABLE1, _ABLATION, _TABLE2)}

#: The profiles by name.
PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "quick",
            "rectangles, convex and digits, one seed, every tenth test row; correlated, two splits; fixed "
            "hyper-parameters: minutes on 2 cores",
            ("rectangles", "convex", "digits"),
            seeds=1,
            search=False,
            every=10,
            label_data=("correlated",),
            splits=2,
        ),
        Profile(
            "full",
            "all data sets, hyper-parameters chosen on the validation rows, 3 seeds or 10 splits, all test rows: for "
            "a GPU",
            None,
            seeds=3,
            search=True,
            every=1,
        ),
    )
}
