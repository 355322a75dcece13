"""Steps of training as CUDA graphs: captured once, then replayed.

On a GPU a step of a small model takes as long as Python needs to launch its kernels, several hundred of them; a graph
launches all of them at once.  What is captured is the whole step: loss, gradients and optimiser.

A graph repeats the same kernels on the same memory.  So only tensors may change from one step to the next: parameters
and what the optimiser keeps of them, the batch and the factor of the learning rate, which are copied to where the graph
reads them, and what generators draw, which torch counts on.  A loss that reads values back (``float(x)``,
``x.unique()``) or moves data cannot be captured: its steps stay eager, and `History` says why.  A loss whose Python
does something else at every call would be captured wrongly, and nobody could tell: so steps are only captured where
`minimise` was told what the loss draws from.
"""

import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

#: one step: a batch and the factor of the learning rates to the losses, () or (K,), with no gradient
Take = Callable[[Tensor, float | Tensor], Tensor]

WARM_UP = 3  # eager steps with batches of a shape before they are captured: libraries set themselves up in the first
LEAST_STEPS = 30  # fewer do not pay: a capture takes as long as a few eager steps
MOST_GRAPHS = 2  # full batches, and a shorter last one
SWITCH = "ENERGATE_CAPTURE"  # 0: never, 1: also where it may not pay
WAITS, WATCHES = "called a synchronizing CUDA operation", "Synchronization debug mode"  # what torch warns of
#: from here on torch registers the generators that it meets in a capture, and warns of those who do
REGISTERS_ITSELF = (2, 14)


class CaptureError(RuntimeError):
    """A step that cannot be captured."""


def plan_steps(
    take: Take,
    capture: bool | None,
    generators: Sequence[torch.Generator] | None,
    tensors: Sequence[Tensor],
    batches: Sequence[object],
    n_steps: int,
) -> "Steps":
    """Steps of a training of these tensors, captured where that is possible, and pays or is asked for.

    ``batches`` are those of the first epoch, ``n_steps`` as many as there may be in all.
    """
    why = why_eager(capture, generators, tensors, batches, n_steps)
    return Steps(take, None if why else CudaRecorder(tensors[0].device, generators or ()), why)


def why_eager(
    capture: bool | None,
    generators: Sequence[torch.Generator] | None,
    tensors: Sequence[Tensor],
    batches: Sequence[object],
    n_steps: int,
) -> str:
    """Why steps are not to be captured, as in `plan_steps`; empty where they are."""
    if capture is None:
        capture = {"0": False, "1": True}.get(os.environ.get(SWITCH, ""))
    devices = {tensor.device for tensor in tensors}
    if capture is False:
        return "it is switched off"
    if generators is None:
        return "`generators` was not given: what the loss draws from is not known"
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        return "the parameters are not on one CUDA device"
    if not all(isinstance(batch, Tensor) and batch.device in devices for batch in batches):
        return "the batches are not tensors on the device of the parameters"
    # A generator of "cuda" is one of the current device, and does not tell its number.
    if not all(generator.device in {*devices, torch.device("cuda")} for generator in generators):
        return "the loss draws on another device"
    if capture is None and n_steps < LEAST_STEPS:
        return f"{n_steps} steps are too few for it to pay"
    return ""


class Recorder(Protocol):
    """What takes eager steps such that they can be captured, and captures them."""

    def warm_up(self, take: Take, batch: Tensor, factor: float) -> Tensor:
        """One eager step; its losses."""

    def record(self, take: Take, batch: Tensor) -> Take:
        """The step for batches of this shape, captured; raises `CaptureError` where that is not possible."""


class Steps:
    """Takes the steps of a training: eager ones, or with a recorder captured ones after the first of every shape."""

    def __init__(self, take: Take, recorder: Recorder | None = None, why_eager: str = "") -> None:
        self._take, self._recorder = take, recorder
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._recorded: dict[tuple[object, ...], Take] = {}
        self.n_replayed, self.why_eager = 0, why_eager

    def __call__(self, batch: Tensor, factor: float) -> Tensor:
        """One step; its losses, which the next step may overwrite."""
        if self._recorder is None:
            return self._take(batch, factor)
        shape = batch.shape, batch.dtype
        if shape not in self._recorded and self._seen[shape] >= WARM_UP and len(self._recorded) < MOST_GRAPHS:
            try:
                self._recorded[shape] = self._recorder.record(self._take, batch)
            except CaptureError as error:
                self.why_eager, self._recorder = str(error), None
                self._recorded.clear()
                return self._take(batch, factor)
        if shape in self._recorded:
            self.n_replayed += 1
            return self._recorded[shape](batch, factor)
        self._seen[shape] += 1
        return self._recorder.warm_up(self._take, batch, factor)


class CudaRecorder:
    """Captures steps on a CUDA device; ``generators`` are those that the loss draws from."""

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]) -> None:
        self._device, self._generators = device, list(generators)
        self._stream = _side_stream(device)
        self._factor = torch.ones((), dtype=torch.float32, device=device)  # as torch's fused steps read it
        self._waits = False

    def warm_up(self, take: Take, batch: Tensor, factor: float) -> Tensor:
        # On the stream of the capture: gradients are added up on the stream that first saw their parameter, and
        # workspaces of libraries belong to a stream.
        self._factor.fill_(factor)
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream), _watching() as warned:
            losses = take(batch, self._factor)
        here.wait_stream(self._stream)
        self._waits = any(WAITS in str(warning.message) for warning in warned)
        return losses

    def record(self, take: Take, batch: Tensor) -> Take:
        if self._waits:  # known before a capture fails, since torch does not come out of that unharmed
            raise CaptureError("a step waits for the device: the loss reads values back, or moves data")
        where, graph = batch.clone(), torch.cuda.CUDAGraph()
        # A capture that fails may leave generators in its midst, the device's own, too: they then go back to copies.
        drawing = [*self._generators, torch.cuda.default_generators[self._device.index]]
        before = [generator.clone_state() for generator in drawing]
        if torch.__version__ < REGISTERS_ITSELF:  # type: ignore[operator]  # it does compare
            for generator in self._generators:
                graph.register_generator_state(generator)
        # Where the capture fails, its context does not put the stream back, and the outer one does.  Other threads may
        # go on using the device.
        aside = torch.cuda.stream(self._stream)
        capture = torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local")
        try:
            with _ONE_AT_A_TIME, aside, capture:
                losses = take(where, self._factor)
        except RuntimeError as error:
            for generator, state in zip(drawing, before, strict=True):
                generator.graphsafe_set_state(state)
            raise CaptureError(_first_cause(error)) from error

        def replay(batch: Tensor, factor: float | Tensor) -> Tensor:
            where.copy_(batch)
            self._factor.fill_(factor)
            graph.replay()
            return losses

        return replay


_ONE_AT_A_TIME = threading.Lock()
_OF_THREAD = threading.local()


@contextmanager
def _watching() -> Iterator[list[warnings.WarningMessage]]:
    """What torch warns of meanwhile, of operations that wait for the device, too; other warnings then go their way."""
    with _ONE_AT_A_TIME, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield warned
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    for warning in warned:
        if not any(own in str(warning.message) for own in (WAITS, WATCHES)):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream to capture on: one for each thread, since another's work on it would be captured, too.

    It is the same in every training, since every new stream would get workspaces of cuBLAS that are never freed.
    """
    streams: dict[torch.device, torch.cuda.Stream] = vars(_OF_THREAD).setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    return streams[device]


def _first_cause(error: BaseException) -> str:
    """The first line of what went wrong first: an error in a capture makes its end fail, too."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {error}".splitlines()[0]
