"""The stages of a `fit`, and how far it is, told through one function to all who want to know.

Three may listen: the terminal (``verbose``), whoever called `watching` around the fit (the command line, a harness),
and scikit-learn's callbacks where scikit-learn has them (1.9).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from energate.estimators.edge import auto_epochs, settle
from energate.training import History, Progress, Stage, row_batches

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


@dataclass(frozen=True)
class Done:
    """A part of `fit` that is done: an epoch of a stage, or something else, which has no progress."""

    task: str
    line: str  # the same for people
    stage: str = ""
    progress: Progress | None = None


def _watch(done: Done) -> bool:
    watcher = _WATCHER.get()
    if watcher is not None and done.progress is not None:
        watcher(done.stage, done.progress)
    return False


def _print(done: Done) -> bool:
    print(done.line)
    return False


class _Callbacks:
    """One task for scikit-learn's callbacks for each part of a `fit`."""

    def __init__(self, estimator: Any, n_tasks: int, X: Any, y: Any) -> None:
        self.given = {"estimator": estimator, "X": X, "y": y}
        self.context = estimator._init_callback_context(max_subtasks=n_tasks)
        self.context.call_on_fit_task_begin(**self.given)

    def __call__(self, done: Done) -> bool:
        task = self.context.subcontext(task_name=done.task)
        task.call_on_fit_task_begin(**self.given)
        return bool(task.call_on_fit_task_end(**self.given))

    def end(self) -> None:
        self.context.call_on_fit_task_end(**self.given)


class Reporter:
    """Tells all who listen of every part of one `fit`, of which there are ``n_tasks``.

    A callback that returns True at the end of an epoch stops that stage of training.
    """

    def __init__(self, estimator: Any, n_tasks: int, X: Any, y: Any = None) -> None:
        self.callbacks = _Callbacks(estimator, n_tasks, X, y) if "_skl_callbacks" in vars(estimator) else None
        self.listeners: list[Callable[[Done], bool]] = [_watch]
        if estimator.verbose:
            self.listeners.append(_print)
        if self.callbacks is not None:
            self.listeners.append(self.callbacks)

    def __call__(self, stage: str, progress: Progress) -> bool:
        """Tell of an epoch, as `energate.training.Listener`."""
        best = "" if progress.best is None else f", best validation loss {float(progress.best.min()):.4f}"
        loss = float(progress.history.loss[-1].mean())
        line = f"[{stage}] epoch {progress.epoch}/{progress.n_epochs}, loss {loss:.4f}{best}"
        return self.tell(Done(f"{stage} epoch", line, stage, progress))

    def tell(self, done: Done) -> bool:
        """Tell everyone; returns whether somebody asks to stop."""
        answers = [listener(done) for listener in self.listeners]
        return any(answers)

    def end(self) -> None:
        """Say that `fit` is done."""
        if self.callbacks is not None:
            self.callbacks.end()


def train_autoencoder(
    estimator: Any,
    loss: Callable[[Tensor], Tensor],
    validate: Callable[[], Tensor] | None,
    rows: Tensor,
    seed: int,
    wanted: tuple[int, int],
    schedule: str = "constant",
) -> History:
    """Train ``estimator.model_`` on batches of row numbers, as the estimator's parameters say.

    ``wanted`` steps are taken by ``max_epochs="auto"``, in so many epochs at most.
    """
    n_steps = math.ceil(len(rows) / max(1, estimator.batch_size))
    epochs = auto_epochs(estimator.max_epochs, n_steps, wanted[0], 40, wanted[1])
    rate, patience = estimator.learning_rate, estimator.n_iter_no_change
    stage = Stage("denoise", epochs, rate, estimator.weight_decay, schedule=schedule, patience=patience)
    reporter, model = Reporter(estimator, epochs, rows), estimator.model_
    batches = row_batches(len(rows), estimator.batch_size, seed, rows.device)
    history = stage.run(loss, model.parameters(), batches, validate, reporter)
    reporter.end()
    settle(model)
    return history
