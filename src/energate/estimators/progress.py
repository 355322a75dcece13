"""The stages of a `fit`, and how far it is, told through one function to all who want to know.

Three may listen: the terminal (``verbose``), whoever called `watching` around the fit (the command line, a harness),
and scikit-learn's callbacks where scikit-learn has them (1.9).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from energate.training import Progress

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
    """Tells all who listen of every part of one `fit`, of which there are ``n_tasks``.

    A callback that returns True at the end of an epoch stops that stage of training.
    """

    def __init__(self, estimator: Any, n_tasks: int, X: Any, y: Any = None) -> None:
        self.verbose = estimator.verbose
        self.given = {"estimator": estimator, "X": X, "y": y}
        self.context: Any = None  # of scikit-learn's callbacks
        if "_skl_callbacks" in vars(estimator):
            self.context = estimator._init_callback_context(max_subtasks=n_tasks)
            self.context.call_on_fit_task_begin(**self.given)

    def __call__(self, stage: str, progress: Progress) -> bool:
        """Tell of an epoch, as `energate.training.Listener`."""
        best = "" if progress.best is None else f", best validation loss {float(progress.best.min()):.4f}"
        loss = float(progress.history.loss[-1].mean())
        line = f"[{stage}] epoch {progress.epoch}/{progress.n_epochs}, loss {loss:.4f}{best}"
        stop = self.tell(f"{stage} epoch", line)
        watcher = _WATCHER.get()
        if watcher is not None:
            watcher(stage, progress)
        return stop

    def tell(self, task: str, line: str) -> bool:
        """Tell of a part that is done, by its name and in a line for people; whether somebody asks to stop."""
        if self.verbose:
            print(line)
        if self.context is None:
            return False
        part = self.context.subcontext(task_name=task)
        part.call_on_fit_task_begin(**self.given)
        return bool(part.call_on_fit_task_end(**self.given))


@contextmanager
def reporting(estimator: Any, n_tasks: int, X: Any, y: Any = None) -> Iterator[Reporter]:
    """A `Reporter` for what is trained inside; callbacks are told when that is done."""
    report = Reporter(estimator, n_tasks, X, y)
    yield report
    if report.context is not None:
        report.context.call_on_fit_task_end(**report.given)
