"""`torchrun -m energate fit`: a command that several processes run together, and for which one of them speaks."""

import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import typer

from energate.cli._shell import say, silence
from energate.errors import InputError

#: what torchrun tells every process that it starts
GIVEN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
AGAIN = "No model was written. Run the same command again; with --checkpoint it goes on where it was."


def together(command: Callable[..., None]) -> Callable[..., None]:
    """Let processes that torchrun has started train together; the command has a ``device``."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        if all(name in os.environ for name in GIVEN) and int(os.environ["WORLD_SIZE"]) > 1:
            with joined(options["device"]):
                command(**options)
        else:
            command(**options)

    return run


@contextlib.contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the other processes.  Only the first prints; of an error, whichever meets one first."""
    rank, local, size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    silence(rank > 0)
    store = None

    def stop(*_: object) -> None:
        raise InputError(f"Process {rank} of {size} was ended, perhaps because another one has died. {AGAIN}")

    signal.signal(signal.SIGTERM, stop)  # by which torchrun ends all when one is dead
    try:
        import torch
        from torch import distributed
        from torch.distributed.rendezvous import rendezvous

        backend = _backend(device, local)
        store = next(iter(rendezvous("env://")))[0]
        if backend != "gloo":
            torch.cuda.set_device(local)
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
        yield
        distributed.destroy_process_group()
    except (InputError, KeyboardInterrupt) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the line is said before the end
        if not _is_first_to_tell(store):
            raise typer.Exit(130 if isinstance(error, KeyboardInterrupt) else 2) from error
        silence(False)
        raise


def _backend(device: str, local: int) -> str:
    import torch

    from energate.estimators.edge import resolve_device

    found = resolve_device(device)
    if found.type != "cuda":
        return "gloo"
    if device not in ("auto", "cuda") or local >= torch.cuda.device_count():
        raise InputError(
            f"Each process takes a GPU of its own, and this machine has {torch.cuda.device_count()}; got process "
            f"{local + 1} with --device {device}. Give --nproc-per-node no more than that, and --device cuda or cpu."
        )
    return "cpu:gloo,cuda:nccl"


def _is_first_to_tell(store: Any) -> bool:
    """Whether no other process has told of an error: one is the cause of others', and they come within moments."""
    try:
        return store is None or store.add("energate/told", 1) == 1
    except RuntimeError:  # whoever kept it is gone
        return True


def fit_by_the_first() -> Callable[[Any, Any, Any], Any] | None:
    """How several processes fit: all of them what is trained by steps, only the first what is not."""
    from energate.training.ranks import group, is_first
    from energate.views.view import KINDS

    ranks = group()
    if ranks is None:
        return None
    told = False

    def fit(estimator: Any, rows: Any, y: Any) -> Any:
        nonlocal told
        view = KINDS.get(type(estimator))
        if view is not None and not view.trains_by_steps(estimator):
            if not is_first():
                raise typer.Exit(0)
            if not told:
                name = type(estimator).__name__
                say(f"Note: {name} remembers rows and is not trained: one process fits it, the others end.", "yellow")
            told = True
        return estimator.fit(rows, y)

    return fit
