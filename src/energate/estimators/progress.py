"""The stages of a `fit`, and how far it is, told through one function to all who want to know.

Three may listen: the terminal (``verbose``), whoever called `watching` around the fit (the command line, a harness),
and scikit-learn's callbacks where scikit-learn has them (1.9).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar, cast

from energate.errors import InputError
from energate.tables.room import lacks_memory
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


def within_memory(fit: Method) -> Method:
    """Have ``fit`` say in an `InputError` that memory ran out, whoever notices it."""

    @wraps(fit)
    def fitted(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        try:
            return fit(self, X, *args, **options)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            raise InputError(
                f"Memory ran out while {type(self).__name__} was fitted to rows of shape {getattr(X, 'shape', '?')}. "
                "Take fewer rows or columns, fewer hidden units, or a smaller `batch_size`."
            ) from error

    return cast("Method", fitted)


def with_callbacks(fit: Method) -> Method:
    """The same, and have scikit-learn end its callbacks when ``fit`` ends, however it ends."""
    fit = within_memory(fit)
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
