"""Training from an estimator's parameters, and telling the outside how far it is.

Progress goes to the terminal, and to scikit-learn's callbacks where scikit-learn has them (1.9).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from torch import Tensor

from energate.estimators.edge import auto_epochs
from energate.training import History, Progress, minimise, row_batches

try:
    from sklearn import callback as _callback
except ImportError:  # scikit-learn before 1.9
    _callback = None

Method = TypeVar("Method", bound=Callable[..., Any])


class _NoCallbacks:
    """In place of scikit-learn's mixin; `object` itself could not stand before other bases."""


#: lets an estimator take scikit-learn's callbacks
CallbackSupportMixin: Any = _NoCallbacks if _callback is None else _callback.CallbackSupportMixin


def with_callbacks(fit: Method) -> Method:
    """Have scikit-learn end its callbacks when ``fit`` ends, however it ends."""
    return fit if _callback is None else _callback.with_callbacks(fit)


Watcher = Callable[[str, Progress], None]
_WATCHER: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` the stage and its progress after every epoch of whatever is fitted inside."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


class Reporter:
    """One task per epoch, or other part of `fit`, for scikit-learn's callbacks, and with ``verbose`` a line for it.

    A callback that returns True at the end of an epoch stops that stage of training.
    """

    def __init__(self, estimator: Any, n_tasks: int, X: Any, y: Any = None) -> None:
        self.estimator, self.rows = estimator, {"X": X, "y": y}
        self.context = None
        if "_skl_callbacks" in vars(estimator):
            self.context = estimator._init_callback_context(max_subtasks=n_tasks)
            self.context.call_on_fit_task_begin(estimator=estimator, **self.rows)

    def __call__(self, stage: str, progress: Progress) -> bool:
        best = "" if progress.best is None else f", best validation loss {float(progress.best.min()):.4f}"
        loss = float(progress.history.loss[-1].mean())
        watcher = _WATCHER.get()
        if watcher is not None:
            watcher(stage, progress)
        return self.task(
            f"{stage} epoch", f"[{stage}] epoch {progress.epoch}/{progress.n_epochs}, loss {loss:.4f}{best}"
        )

    def task(self, name: str, line: str) -> bool:
        """Say that a part of `fit` is done; returns whether a callback asks to stop."""
        if self.estimator.verbose:
            print(line)
        if self.context is None:
            return False
        task = self.context.subcontext(task_name=name)
        task.call_on_fit_task_begin(estimator=self.estimator, **self.rows)
        return bool(task.call_on_fit_task_end(estimator=self.estimator, **self.rows))

    def end(self) -> None:
        """Say that `fit` is done."""
        if self.context is not None:
            self.context.call_on_fit_task_end(estimator=self.estimator, **self.rows)


def train_rows(
    estimator: Any,
    loss: Callable[[Tensor], Tensor],
    validate: Callable[[], Tensor] | None,
    rows: Tensor,
    seed: int,
    *,
    wanted_steps: int,
    most_epochs: int,
    schedule: str = "constant",
) -> History:
    """Train ``estimator.model_``, one auto-encoder, on batches of row numbers, as the estimator's parameters say."""
    model = estimator.model_
    n_steps = math.ceil(len(rows) / max(1, estimator.batch_size))
    epochs = auto_epochs(estimator.max_epochs, n_steps, wanted_steps, 40, most_epochs)
    report = Reporter(estimator, epochs, rows)
    history = minimise(
        loss,
        model.parameters(),
        row_batches(len(rows), estimator.batch_size, seed, rows.device),
        epochs=epochs,
        learning_rate=estimator.learning_rate,
        weight_decay=estimator.weight_decay,
        schedule=schedule,
        validate=validate,
        patience=None if validate is None else estimator.n_iter_no_change,
        callback=lambda progress: report("denoise", progress),
    )
    report.end()
    if model.a.device.type == "cpu":
        model.double()  # scores do not depend on which other rows are scored
    return history
