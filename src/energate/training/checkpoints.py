"""Checkpoints: a training that was killed goes on where it was, and ends as if nothing had happened.

Inside `checkpointing` every call of `minimise` writes its state after an epoch, into a file of its own: they are
numbered as they come.  A `fit` that is run again makes the same calls in the same order.  Those that had ended are not
trained again, and the one that was interrupted goes on; what a fit does between them is quick, and is done again.  A
file is safetensors with JSON in its header, and takes its name when it is whole.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from energate.errors import InputError
from energate.files import written_whole
from energate.training.ranks import from_first, group, is_first

if TYPE_CHECKING:
    from energate.training.loop import History, Keeper, Stepper

FORMAT = "energate checkpoint 1"
EVERY = 1.0  # seconds; epochs that are shorter are not all written


@dataclass
class Checkpoints:
    """A folder of checkpoints, for one fit at a time; ``about`` is what the fit is of, and must be the same again."""

    folder: Path
    about: str = ""
    every: float = EVERY
    n_begun: int = 0
    n_resumed: int = field(default=0, init=False)  # epochs that were not trained again

    def next_path(self) -> Path:
        """The file of the next call of `minimise`."""
        self.n_begun += 1
        return self.folder / f"training-{self.n_begun - 1:03d}.safetensors"

    def remove(self) -> None:
        """Remove the files, when the fit is done and saved."""
        for path in self.folder.glob("training-*.safetensors"):
            path.unlink(missing_ok=True)


_CURRENT: ContextVar[Checkpoints | None] = ContextVar("checkpoints", default=None)


@contextmanager
def checkpointing(folder: str | os.PathLike[str], *, about: str = "", every: float = EVERY) -> Iterator[Checkpoints]:
    """Let whatever is fitted inside be killed and run again, from where it was.

    ``with checkpointing("folder"): model.fit(X, y)``.  The second run must be the same as the first: the same data,
    parameters and ``random_state``, which must be a number.  Its model is then the one that an undisturbed run gives.
    At most one epoch is lost, or ``every`` seconds of shorter ones.  The files stay in the folder: `Checkpoints.remove`
    removes them.
    """
    found = Checkpoints(Path(folder), about, every)
    token = _CURRENT.set(found)
    try:
        yield found
    finally:
        _CURRENT.reset(token)


def begin(
    stepper: "Stepper",
    keeper: "Keeper | None",
    history: "History",
    generators: Sequence[torch.Generator] | None,
    epochs: int,
) -> tuple["Checkpoint | None", int]:
    """The checkpoint of a call of `minimise` that begins now, if one is asked for, and the epochs that are there."""
    current = _CURRENT.get()
    if current is None:
        return None, 0
    found = Checkpoint(current, stepper, keeper, history, generators or (), epochs)
    return found, found.restore()


class Checkpoint:
    """The state of one call of `minimise`, to a file and back."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        stepper: "Stepper",
        keeper: "Keeper | None",
        history: "History",
        generators: Sequence[torch.Generator],
        epochs: int,
    ) -> None:
        self.owner, self.path = checkpoints, checkpoints.next_path()
        self.stepper, self.keeper, self.history = stepper, keeper, history
        self.generators, self.epochs = generators, epochs
        self.traces = [trace for group in stepper.groups for trace in group.optimiser.traces]
        self.known_by = self._sum(checkpoints.about)
        self.seconds, self.written = 0.0, time.monotonic()

    def _sum(self, about: str) -> str:
        """What is trained, from where: shapes and values of the parameters before the first step."""
        digest = hashlib.sha256(f"{FORMAT} {about} {self.epochs}".encode())
        for tensor in self.stepper.tensors:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    # --- back --------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                about = json.loads(file.metadata()["about"])
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path} is no checkpoint, or is damaged. Remove it to begin anew.") from error
        if about["known_by"] != self.known_by:
            raise InputError(
                f"{self.path} is the checkpoint of another fit: of other data, parameters or another `random_state`. "
                "Choose another folder, or remove this one."
            )
        return about, found

    @torch.no_grad()
    def restore(self) -> int:
        """Put everything as it was, if there is a file; the number of epochs that need not be trained."""
        read = from_first(group(), self._read)  # others may be on machines that do not see the folder
        if read is None:
            return 0
        about, found = read
        for name, tensor in self._in_place().items():
            tensor.copy_(found[name])
        if self.keeper is not None and about["offered"]:
            like = self.stepper.tensors[0].device
            self.keeper.offered = True
            self.keeper.values, self.keeper.epoch = found["values"].to(like), found["epoch"].to(like)
            self.keeper.stopped, self.keeper.diverged = found["stopped"].to(like), found["diverged"].to(like)
        for i, generator in enumerate(self._drawing()):
            generator.set_state(found[f"generator {i}"])
        self.history.loss = list(found["loss"])
        self.history.validation = list(found["validation"]) if "validation" in found else []
        self.history.validated, self.history.n_steps = about["validated"], about["n_steps"]
        self.seconds = about["seconds"]
        self.owner.n_resumed += about["epoch"]
        return self.epochs if about["ended"] else int(about["epoch"])

    # --- and forth ---------------------------------------------------------------------------------------------

    def offer(self, epoch: int, ended: bool, seconds: float) -> None:
        """Write the state after an epoch, unless that was done a moment ago."""
        ended = ended or epoch == self.epochs
        if not is_first():
            return
        if not ended and time.monotonic() - self.written < self.owner.every:
            return
        tensors = {name: tensor.detach() for name, tensor in self._in_place().items()}
        if self.keeper is not None and self.keeper.offered:
            tensors |= {"values": self.keeper.values, "epoch": self.keeper.epoch}
            tensors |= {"stopped": self.keeper.stopped, "diverged": self.keeper.diverged}
        tensors |= {f"generator {i}": generator.get_state() for i, generator in enumerate(self._drawing())}
        tensors["loss"] = torch.stack(self.history.loss)
        if self.history.validation:
            tensors["validation"] = torch.stack(self.history.validation)
        about: dict[str, Any] = {"known_by": self.known_by, "epoch": epoch, "ended": ended}
        about |= {"offered": self.keeper is not None and self.keeper.offered, "seconds": self.seconds + seconds}
        about |= {"validated": self.history.validated, "n_steps": self.history.n_steps}
        content = to_bytes(
            {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()},
            {"format": FORMAT, "about": json.dumps(about)},
        )
        with written_whole(self.path) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.written = time.monotonic()

    def _in_place(self) -> dict[str, Tensor]:
        found = {f"parameter {i}": tensor for i, tensor in enumerate(self.stepper.tensors)}
        for i, trace in enumerate(self.traces):
            found |= {f"mean {i} {j}": mean for j, mean in enumerate(trace.means)}
            found[f"count {i}"] = trace.count
        saved = [] if self.keeper is None else self.keeper.saved
        return found | {f"kept {i}": tensor for i, tensor in enumerate(saved)}

    def _drawing(self) -> list[torch.Generator]:
        return [*self.generators, torch.default_generator]
