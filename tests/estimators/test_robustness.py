"""Every estimator on data, types and surroundings at the edge: a good answer or a clear error, never a warning."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as some
import joblib
import numpy as np
import pytest
import scipy.sparse
import torch
from cases import CLASSIFIERS, ESTIMATORS, IMAGES, MEMORIES, MEMORY, SCORER, EstimatorCase
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from energate import EnergyClassifier, EnergyScorer, InputError, MemoryUnits, SoftColumnUnits, load, save
from energate.estimators.edge import SCALINGS
from energate.estimators.liking import LikingMixin

pandas = pytest.importorskip("pandas")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
y = (X[:, 0] + X[:, 1] > 0).astype(int)
X_MANY, Y_MANY = np.tile(X, (4, 1)) + 0.1 * RNG.normal(size=(240, 4)), np.tile(y, 4)  # enough to hold rows out
BOTH = CLASSIFIERS[2]

each = pytest.mark.parametrize("case", ESTIMATORS, ids=lambda case: case.name)
each_trained = pytest.mark.parametrize(
    "case", [case for case in ESTIMATORS if case not in MEMORIES], ids=lambda case: case.name
)
each_classifier = pytest.mark.parametrize("case", CLASSIFIERS, ids=lambda case: case.name)


def check_scores(case: EstimatorCase, model: Any, rows: Any) -> np.ndarray:
    """Finite, and for classifiers probabilities."""
    scores = case.scores(model, rows)
    assert np.isfinite(scores).all()
    if isinstance(model, LikingMixin):
        np.testing.assert_allclose(scores.sum(1), 1)
        assert scores.min() >= 0
    return scores


# --- few rows, many columns ----------------------------------------------------------------------------------------


@each
def test_one_row_is_refused(case) -> None:
    with pytest.raises(ValueError, match=r"at least 2 classes|minimum of 2 is required"):
        case.fit(X[:1], y[:1])


@each_classifier
def test_one_class_is_refused(case) -> None:
    with pytest.raises(InputError, match="at least 2 classes; got the one class"):
        case.fit(X, np.zeros(60))


@each
@pytest.mark.parametrize(
    "rows",
    [X[[0, 0]], X[:2], np.full((9, 4), 3.7), np.full((9, 4), (1e12, 1e-12, 1, 0)), X[:, :1]],
    ids=["same", "two", "constant", "constants", "one column"],
)
def test_little_or_nothing_to_learn_from(case, rows) -> None:
    model = case.fit(rows, np.arange(len(rows)) % 2)
    check_scores(case, model, rows)
    check_scores(case, model, rows[:1])


@each
def test_ten_thousand_columns(case) -> None:
    wide = np.random.default_rng(1).normal(size=(20, 10_000))
    options = {"generative_weight": 0.1} if case.kind is EnergyClassifier else {}
    # A symmetric pair has both sides, and a network goes over every pixel.
    rows = wide[:, :2000] if case.pairs else wide[:, :1600] if case is IMAGES else wide
    check_scores(case, case.fit(rows, np.arange(20) % 2, **options), rows)


def test_what_memory_has_no_room_for_is_refused_before_it_begins(monkeypatch) -> None:
    monkeypatch.setattr("energate.tables.room.room", lambda: 40_000.0)
    with pytest.raises(
        InputError, match=r"\d auto-encoders of 4 columns with 1,000 units each take 0 MB.*units='trunk'"
    ):
        EnergyClassifier("mean", n_hidden=1000, max_epochs=1, device="cpu").fit(X, y)
    with pytest.raises(InputError, match=r"Steps of [\d,]+ bytes of weights take .*Fewer hidden units"):
        EnergyClassifier("mean", n_hidden=100, max_epochs=1, pretrain_epochs=1, device="cpu").fit(X, y)


def test_a_memory_of_very_many_columns_has_no_square_matrix_of_them(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("energate.training.memory.MOST_COLUMNS", 3)
    scorer = EnergyScorer(device="cpu", random_state=0).fit(X)
    assert [type(group) for group in scorer.model_.groups] == [MemoryUnits, SoftColumnUnits]
    check_scores(MEMORY, scorer, X)
    save(scorer, tmp_path / "model.zip")
    np.testing.assert_allclose(load(tmp_path / "model.zip").score_samples(X), scorer.score_samples(X), rtol=1e-9)


@each
def test_predict_from_eight_threads_at_once_is_right(case) -> None:
    model = case.fit(X, y)
    alone = case.scores(model, X)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: case.scores(model, X), range(16)))
    for each_ in found:
        np.testing.assert_allclose(each_, alone, rtol=1e-6, atol=1e-8)


@each_classifier
def test_classes_of_one_row_and_heavy_imbalance(case) -> None:
    labels = np.zeros(240, dtype=int)
    labels[0], labels[1:3] = 1, 2
    model = case.fit(X_MANY, labels)
    p = check_scores(case, model, X_MANY)
    assert p.shape == (240, 3)
    assert p[:, 0].mean() > 0.8  # the frequencies are kept


@each_classifier
def test_equal_rows_with_different_labels_share_the_probability(case) -> None:
    model = case.fit(np.repeat(X, 2, axis=0), np.tile([0, 1], 60), max_epochs=20)
    np.testing.assert_allclose(case.scores(model, X), 0.5, atol=0.2)


# --- scales --------------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("scale", [1e300, 1e150, 1e-150, 1e-300, (1e12, 1e-12, 1.0, 1e300)], ids=str)
def test_the_scale_of_columns_does_not_matter(case, scale) -> None:
    """What a power of two does not change at all, a power of ten changes by rounding."""
    # Pixels have one scale for all, unless they are asked not to.
    options = {"scaling": "unit"} if case is IMAGES and isinstance(scale, tuple) else {}
    plain = case.scores(case.fit(X, y, **options), X)
    scaled = case.scores(case.fit(X * scale, y, **options), X * scale)
    np.testing.assert_allclose(scaled, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_powers_of_two_change_nothing(scaling) -> None:
    weight = RNG.random(60)
    small, large = (SCALINGS[scaling](X * factor, weight) for factor in (1.0, 2.0**900))
    if scaling == "none":
        assert (small.size == large.size).all()
    else:
        np.testing.assert_array_equal(small(X), large(X * 2.0**900))


def test_training_rows_are_never_far_from_the_centre() -> None:
    """Whatever the columns: at most 8 sizes, the range being 8 sizes at most; constants do not count their rounding."""
    constant = 0.1e12 + np.zeros(60)
    columns = [X[:, 0], 1e-12 * X[:, 1], constant, constant * (1 + 1e-16 * X[:, 2]), 5e-324 * (X[:, 3] > 0)]
    outlier = X[:, 0].copy()
    outlier[7] = 1e13
    rows = np.column_stack([*columns, outlier])
    assert np.abs(SCALINGS["standard"](rows, np.ones(60))(rows)).max() <= 8 + 1e-9
    unit = SCALINGS["unit"](rows, np.ones(60))(rows)
    assert (unit.min(), unit.max()) == (0, 1)


@each
def test_outliers_of_any_size_do_no_harm(case) -> None:
    rows = X.copy()
    rows[3, 1], rows[7, 2] = 1e13, -1e300
    check_scores(case, case.fit(rows, y), rows)


@each
def test_columns_too_wide_for_floating_point_are_named(case) -> None:
    rows = X.copy()
    rows[:2, 1] = 1.5e308, -1.5e308
    with pytest.raises(InputError, match=r"span less than 1.8e\+308; the columns \[1\] reach from -1.5e\+308"):
        case.fit(rows, y)


@each
def test_huge_values_without_scaling_are_refused(case) -> None:
    with pytest.raises(
        InputError, match=r"loss is not finite before the first step|a memory takes values below (4e\+61|3e\+38)"
    ):
        case.fit(X * 1e150, y, scaling="none")


@each
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("factor", [1e20, 1e150, 1e300])
def test_rows_far_from_those_of_fit_have_finite_scores(case, scaling, factor) -> None:
    model = case.fit(X, y, scaling=scaling)
    check_scores(case, model, X * factor)
    if case.kind is EnergyClassifier and scaling == "standard":
        assert model.rejects(X * factor).all()
    if case is SCORER and scaling == "standard":
        assert (model.predict(X * factor) == -1).all()


EXTREME = st.floats(-1e300, 1e300) | st.sampled_from([0.0, 1.0, 1e-300, 5e-324, 1e13, -1e300, 1e12 + 1e-4])
TABLES = st.tuples(st.integers(2, 6), st.integers(1, 3)).flatmap(
    lambda shape: some.arrays(float, shape, elements=EXTREME)
)


@pytest.mark.parametrize("case", [CLASSIFIERS[2], SCORER, IMAGES, ESTIMATORS[-1]], ids=lambda case: case.name)
@settings(max_examples=30, deadline=None)
@given(rows=TABLES, new=TABLES, scaling=st.sampled_from(sorted(SCALINGS)))
def test_any_finite_table_gives_finite_scores_or_a_clear_error(case, rows, new, scaling) -> None:
    try:
        model = case.fit(rows, np.arange(len(rows)) % 2, scaling=scaling, max_epochs=1)
    except InputError as error:
        if scaling == "none" and ("not finite" in str(error) or "diverged" in str(error)):
            return
        raise
    check_scores(case, model, rows)
    if new.shape[1] == rows.shape[1]:
        check_scores(case, model, new)


# --- kinds of X ----------------------------------------------------------------------------------------------------


@each
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_taken_for_holes_or_refused(case, bad) -> None:
    rows = X.copy()
    rows[5, 2] = bad
    if np.isnan(bad) and get_tags(case.build()).input_tags.allow_nan:  # a missing cell
        for trained_on in (rows, X):
            assert np.isfinite(case.scores(case.fit(trained_on, y), rows)).all()
        return
    with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
        case.fit(rows, y)
    with pytest.raises(ValueError, match=r"contains (NaN|infinity)"):
        case.scores(case.fit(X, y), rows)


def memory_mapped(rows: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "rows.npy", rows)
    return np.load(folder / "rows.npy", mmap_mode="r")


@each
def test_the_layout_and_container_of_rows_do_not_matter(case, tmp_path) -> None:
    wide = np.zeros((120, 8))
    wide[::2, ::2] = X
    read_only = X.copy()
    read_only.flags.writeable = False
    same = [X.tolist(), np.asfortranarray(X), wide[::2, ::2], read_only, memory_mapped(X, tmp_path), X.astype(object)]
    plain = case.scores(case.fit(X, y), X)
    for rows in same:
        before = np.array(rows, dtype=float)
        np.testing.assert_allclose(case.scores(case.fit(rows, y), rows), plain, rtol=1e-9)
        np.testing.assert_array_equal(np.array(rows, dtype=float), before)


@each
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint64, bool])
def test_every_numeric_dtype_is_read_as_float64(case, dtype) -> None:
    rows = np.abs(3 * X).astype(dtype)
    expected = case.scores(case.fit(rows.astype(float), y), rows.astype(float))
    np.testing.assert_allclose(case.scores(case.fit(rows, y), rows), expected, rtol=1e-6, atol=1e-8)


@each
@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.array([["a", "b"], ["c", "d"]], dtype=object), ValueError, "could not convert string"),
        (scipy.sparse.csr_matrix(X[:2]), TypeError, r"dense data is required. Use '.toarray\(\)'"),
        (X[:2] + 1j, ValueError, "Complex data not supported"),
        (X[:2, 0], ValueError, "Expected 2D array"),
        (X[:2].reshape(2, 2, 2), ValueError, "dim 3"),
        (X[:2, :0], ValueError, r"0 feature\(s\)"),
    ],
    ids=["strings", "sparse", "complex", "1d", "3d", "no columns"],
)
def test_what_is_no_table_of_numbers_is_refused(case, rows, error, message) -> None:
    model = case.build()
    if case is IMAGES and message == "dim 3":
        pytest.skip("these are images")
    with pytest.raises(error, match=message):
        model.fit(rows, np.zeros((2, 1)) if case.pairs else [0, 1])


@each
def test_no_rows_to_score_are_refused(case) -> None:
    with pytest.raises(ValueError, match="minimum of 1 is required"):
        case.scores(case.fit(X, y), X[:0])


@each
def test_frames_are_read_by_column_names(case) -> None:
    frame = pandas.DataFrame(X, columns=list("abcd"))
    model = case.fit(frame, y)
    np.testing.assert_array_equal(model.feature_names_in_, list("abcd"))
    np.testing.assert_allclose(case.scores(model, frame), case.scores(case.fit(X, y), X), rtol=1e-9)
    with pytest.raises(ValueError, match="must be in the same order"):
        case.scores(model, frame[list("bacd")])


@pytest.mark.parametrize("case", [BOTH, SCORER], ids=lambda case: case.name)
def test_hidden_units_come_as_a_frame_when_asked_for(case) -> None:
    rows = pandas.DataFrame(X, columns=list("abcd"), index=range(100, 160))
    model = case.fit(rows, y).set_output(transform="pandas")
    frame = model.transform(rows)
    assert list(frame.columns) == list(model.get_feature_names_out())
    assert list(frame.index) == list(range(100, 160))


# --- labels and weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [np.array(["no", "yes"]), np.array(["no", "yes"], object), np.array([False, True]), np.array([1.0, 2.0]),
     np.array([-3, 2**40]), np.array([0, 255], np.uint8)],
    ids=lambda names: str(names.dtype),
)  # fmt: skip
def test_labels_come_back_as_they_were(names) -> None:
    model = BOTH.fit(X, names[y])
    assert model.classes_.dtype == names.dtype
    assert model.predict(X).dtype == names.dtype
    np.testing.assert_array_equal(model.classes_, names)
    np.testing.assert_allclose(BOTH.scores(model, X), BOTH.scores(BOTH.fit(X, y), X), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (X[:, 0], "continuous"),
        (y + 0.5, "continuous"),
        (np.where(y, np.nan, 1.0), "NaN"),
        (np.column_stack([y, y]), "1d array"),
        ([None if one else 1 for one in y], "Unknown label type"),
        (y[:-1], "inconsistent numbers of samples"),
        (None, "requires y"),
    ],
    ids=["continuous", "halves", "nan", "2d", "none inside", "short", "none"],
)
def test_what_are_no_labels_is_refused(labels, message) -> None:
    with pytest.raises(ValueError, match=message):
        BOTH.fit(X, labels)


def test_labels_that_fit_did_not_see_only_count_as_mistakes() -> None:
    assert BOTH.fit(X, y).score(X, y + 2) == 0
    assert BOTH.fit(X, np.array(["a", "b"])[y]).score(X, ["another"] * 60) == 0


@each_classifier
@pytest.mark.parametrize("value", [1.0, 7.3, 1e308, 5e-324])
def test_equal_weights_are_no_weights(case, value) -> None:
    weighted = case.build().fit(X, y, sample_weight=np.full(60, value))
    np.testing.assert_allclose(case.scores(weighted, X), case.scores(case.fit(X, y), X), rtol=1e-6, atol=1e-8)


def test_rows_of_weight_zero_are_not_there() -> None:
    used = RNG.random(240) > 0.5
    weighted = BOTH.build().fit(np.where(used[:, None], X_MANY, 1e9), Y_MANY, sample_weight=used)
    np.testing.assert_allclose(
        BOTH.scores(weighted, X), BOTH.scores(BOTH.fit(X_MANY[used], Y_MANY[used]), X), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize(
    ("weight", "class_weight", "message"),
    [
        (-np.ones(60), None, "Negative values"),
        (np.zeros(60), None, "non-zero|more than 0"),
        (np.full(60, np.nan), None, "NaN"),
        (np.ones(59), None, r"sample_weight.shape == \(59,\)"),
        (y.astype(float), None, r"Every class must have a row of weight above 0; \[0\] have none"),
        (np.where(y, 1e300, 1.0), None, r"\[0\] have none"),
        (None, {0: 0.0, 1: 1.0}, r"\[0\] have none"),
        (None, {0: 0.0, 1: 0.0}, "got values from 0 to 0"),
        (None, {0: -1.0, 1: 1.0}, "got values from -1 to 1"),
        (None, {7: 1.0}, "not in class_weight"),
    ],
    ids=["negative", "zero", "nan", "short", "class", "tiny class", "weight 0", "weights 0", "weight -1", "unknown"],
)
def test_weights_that_leave_nothing_or_mean_nothing_are_refused(weight, class_weight, message) -> None:
    with pytest.raises(ValueError, match=message):
        BOTH.build(class_weight=class_weight).fit(X, y, sample_weight=weight)


@each_trained
@pytest.mark.parametrize(
    ("option", "value"),
    [("batch_size", 0), ("batch_size", None), ("validation_fraction", -0.5), ("validation_fraction", None),
     ("max_epochs", 1.5), ("max_epochs", "many"), ("scaling", ["standard"]), ("noise", None),
     ("learning_rate", "fast")],
)  # fmt: skip
def test_parameters_that_mean_nothing_are_refused_by_name(case, option, value) -> None:
    with pytest.raises((InputError, TypeError), match=rf"`{option}`|number of epochs|invalid data type") as caught:
        case.fit(X, y, **{option: value})
    if option != "learning_rate" or case.kind is EnergyClassifier:
        assert isinstance(caught.value, InputError)


# --- surroundings --------------------------------------------------------------------------------------------------


@each
def test_fit_leaves_the_world_as_it_was(case) -> None:
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), np.random.get_state()[2]  # noqa: NPY002
    settings_before = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), np.geterr()
    case.scores(case.fit(X_MANY, Y_MANY), X_MANY)
    state = np.random.get_state()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (state[1] == before[1]).all()
    assert state[2] == before[2]
    assert (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), np.geterr()) == settings_before


@each
def test_fits_repeat_alone_twice_and_in_threads(case) -> None:
    alone = case.scores(case.fit(X_MANY, Y_MANY), X_MANY)
    twice = case.fit(X, y).fit(X_MANY, X_MANY if case.pairs else Y_MANY)
    np.testing.assert_allclose(case.scores(twice, X_MANY), alone, rtol=1e-12, atol=1e-12)
    with ThreadPoolExecutor(3) as pool:  # torch may split the work otherwise in threads that are not the first
        for model in pool.map(lambda _: case.fit(X_MANY, Y_MANY), range(3)):
            # The library for products is chosen for the whole process while a trunk takes a step.
            np.testing.assert_allclose(case.scores(model, X_MANY), alone, rtol=1e-4, atol=1e-6)


@each
def test_copies_give_the_same(case, tmp_path) -> None:
    model = case.fit(X, y)
    expected = case.scores(model, X)
    joblib.dump(model, tmp_path / "model.joblib")
    save(model, tmp_path / "model.zip")
    again = clone(model).fit(X, X if case.pairs else y)
    copies = [
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "model.joblib"),
        load(tmp_path / "model.zip"),
        again,
    ]
    for copied in copies:  # the last bit of a product may depend on where in memory its numbers begin
        np.testing.assert_allclose(case.scores(copied, X), expected, rtol=1e-7, atol=1e-9)
    assert not hasattr(clone(model), "model_")


@pytest.mark.slow
@each_classifier
def test_the_tools_of_scikit_learn_take_it(case) -> None:
    quick = case.build(max_epochs=15)
    assert cross_val_score(make_pipeline(StandardScaler(), quick), X_MANY, Y_MANY, cv=3).mean() > 0.7
    search = GridSearchCV(quick, {"n_hidden": [2, 8]}, cv=2, n_jobs=1).fit(X_MANY, Y_MANY)
    assert search.best_score_ > 0.7
    p = CalibratedClassifierCV(quick, cv=2).fit(X_MANY, Y_MANY).predict_proba(X_MANY)
    assert (p.argmax(1) == Y_MANY).mean() > 0.7


# --- callbacks -----------------------------------------------------------------------------------------------------


class Recorder:
    """A callback that notes what it is told, and can stop or interrupt training."""

    max_propagation_depth = None

    def __init__(self, stop: bool = False, interrupt_after: int | None = None) -> None:
        self.stop, self.interrupt_after = stop, interrupt_after
        self.seen: list[str] = []

    def setup(self, estimator: Any, context: Any) -> None:
        self.seen.append("setup")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.seen.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None: ...

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        self.seen.append(context.task_name)
        if self.interrupt_after is not None and len(self.seen) > self.interrupt_after:
            raise KeyboardInterrupt
        return self.stop


with_callbacks = pytest.mark.skipif(
    not hasattr(EnergyClassifier, "set_callbacks"), reason="scikit-learn before 1.9 has no callbacks"
)


def epochs_of(case: EstimatorCase, stop: bool = False) -> list[str]:
    n_epochs = 1 if stop else 3
    if case in MEMORIES:
        return ["remember"]
    if not isinstance(case.build(), LikingMixin):
        return ["denoise epoch"] * n_epochs
    before = ["pretrain epoch"] * (1 if stop else 2) if "pretrain_epochs" in case.more else []
    return before + ["fine-tune epoch"] * n_epochs


@each
@with_callbacks
@pytest.mark.parametrize("stop", [False, True])
def test_a_callback_sees_every_epoch_and_can_stop(case, stop) -> None:
    callback = Recorder(stop)
    case.build().set_callbacks(callback).fit(X, X if case.pairs else y)
    assert callback.seen == ["setup", *epochs_of(case, stop), "fit", "teardown"]


@with_callbacks
def test_partial_fit_ends_its_callbacks() -> None:
    callback = Recorder()
    BOTH.build(max_epochs=1).set_callbacks(callback).partial_fit(X, y)
    assert callback.seen == ["setup", "pretrain epoch", "fine-tune epoch", "fit", "teardown"]


@each
@with_callbacks
def test_progress_bars_run_and_end(case, capsys) -> None:
    pytest.importorskip("rich")
    from sklearn.callback import ProgressBar

    case.build().set_callbacks(ProgressBar()).fit(X, X if case.pairs else y)
    assert "100%" in capsys.readouterr().out
    assert not [
        thread for thread in threading.enumerate() if "RichProgress" in type(thread).__name__
    ]  # of other libraries there may be some


@with_callbacks
def test_callbacks_reach_it_inside_pipelines_and_searches() -> None:
    callback = Recorder()
    make_pipeline(StandardScaler(), BOTH.build()).set_callbacks(callback).fit(X, y)
    assert [name for name in callback.seen if "epoch" in name] == epochs_of(BOTH)
    callback = Recorder()
    GridSearchCV(BOTH.build(), {"n_hidden": [2, 8]}, cv=2).set_callbacks(callback).fit(X, y)
    assert [name for name in callback.seen if "epoch" in name] == 5 * epochs_of(BOTH)  # 2 x 2 fits, and the best


@each
@with_callbacks
def test_an_interrupted_fit_leaves_no_mixture_behind(case, tmp_path) -> None:
    """Either no fitted estimator, or, for pairs, one that is only trained less; the next fit is as any other."""
    callback = Recorder(interrupt_after=1 if case in MEMORIES else 2)
    for model in (case.build(), case.fit(X[:, :3], y)):
        with pytest.raises(KeyboardInterrupt):
            model.set_callbacks(callback).fit(X, X if case.pairs else y)
        assert callback.seen[-1] == "teardown"
        if case.pairs:
            check_scores(case, model, X)
        else:
            with pytest.raises(NotFittedError):
                case.scores(model, X)
            with pytest.raises(NotFittedError):
                model.predict(X)
            with pytest.raises(InputError, match="not fitted"):
                save(model, tmp_path / "model")
        model.set_callbacks().fit(X, X if case.pairs else y)
        np.testing.assert_allclose(case.scores(model, X), case.scores(case.fit(X, y), X), rtol=1e-6, atol=1e-8)


@with_callbacks
def test_an_interrupted_warm_start_can_go_on_and_partial_fit_stays_usable() -> None:
    warm = BOTH.fit(X, y, warm_start=True)
    with pytest.raises(KeyboardInterrupt):
        warm.set_callbacks(Recorder(interrupt_after=2)).fit(X, y)
    check_scores(BOTH, warm.set_callbacks().fit(X, y), X)
    some_rounds = BOTH.build().partial_fit(X, y)
    with pytest.raises(KeyboardInterrupt):
        some_rounds.set_callbacks(Recorder(interrupt_after=2)).partial_fit(X, y)
    check_scores(BOTH, some_rounds, X)
    with pytest.raises(InputError, match="got also"):
        some_rounds.partial_fit(X, y + 5)
    check_scores(BOTH, some_rounds.set_callbacks().partial_fit(X, y), X)


@each_trained
def test_a_refit_that_is_refused_does_not_mix_two_models(case) -> None:
    model = case.fit(X[:, :3], y)
    with pytest.raises(InputError, match="at least 1"):
        model.set_params(n_hidden=0).fit(X, X if case.pairs else y)
    with pytest.raises(NotFittedError):
        case.scores(model, X)


# --- GPU -----------------------------------------------------------------------------------------------------------


@each
@pytest.mark.gpu
def test_gpu_fits_repeat_and_agree_with_the_cpu(case, tmp_path) -> None:
    options = {"max_epochs": 30}
    cpu = case.fit(X_MANY, Y_MANY, **options)
    gpu, again = (case.fit(X_MANY, Y_MANY, device="cuda", **options) for _ in range(2))
    assert next(gpu.model_.parameters()).is_cuda
    on_gpu = case.scores(gpu, X_MANY)
    np.testing.assert_array_equal(on_gpu, case.scores(again, X_MANY))
    # The same weights on the CPU.
    save(gpu, tmp_path / "model.zip")
    moved = load(tmp_path / "model.zip", device="cpu")
    assert not next(moved.model_.parameters()).is_cuda
    np.testing.assert_allclose(case.scores(moved, X_MANY), on_gpu, rtol=1e-4, atol=1e-4)
    # Other random numbers: another model, about as good.
    if case.kind is EnergyClassifier:
        assert abs(cpu.score(X_MANY, Y_MANY) - gpu.score(X_MANY, Y_MANY)) < 0.06
        assert np.abs(case.scores(cpu, X_MANY) - on_gpu).mean() < 0.05


@each
@pytest.mark.gpu
def test_a_pickle_from_a_gpu_gives_the_same_there_and_scores_far_rows(case) -> None:
    gpu = case.fit(X, y, device="cuda")
    np.testing.assert_array_equal(case.scores(pickle.loads(pickle.dumps(gpu)), X), case.scores(gpu, X))
    for factor in (1e20, 1e150):
        check_scores(case, gpu, X * factor)
