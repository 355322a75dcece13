"""`Scorer`: a saved model as a function of Arrow batches, for programs that have an engine of their own."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from energate.errors import require
from energate.jobs.inputs import Batches
from energate.jobs.work import one_thread
from energate.persistence.loaded import Loaded
from energate.views.applying import Asking, BaseColumns, Question


class Scorer:
    """Adds what a model says of each row to a table, or a batch, of pyarrow; pickled, it is the path of the model.

    Ray Data: ``data.map_batches(Scorer("model.zip"), batch_format="pyarrow")``.  Spark:
    ``frame.mapInArrow(Scorer("model.zip").over, schema)``.  Every process loads the model once, when it is first asked.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        command: str = "score",
        *,
        leave_out: Sequence[str] = (),
        base: BaseColumns | None = None,
        prefix: str = "",
        device: str = "cpu",
    ) -> None:
        self.model, self.device = str(Path(model).absolute()), device
        self.question = Question(command, tuple(leave_out), base, prefix)
        self._asking: Asking | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_asking": None}

    def __call__(self, batch: Any) -> Any:
        """The table, or the batch, with the new columns."""
        pa = require("pyarrow", "jobs")
        if self._asking is None:
            self._asking = self.question.of(Loaded.of(Path(self.model), self.device).table)
        names = batch.schema.names
        source = Batches("the batch", names, [batch])
        with one_thread():
            if len(batch):
                (answer,) = self._asking.answers(source)
                said = answer.said
            else:
                found = self._asking.nothing(source)
                said = {name: values for name, values in found.items() if name not in set(names)}
        for name, values in said.items():
            batch = batch.append_column(name, pa.array(values))
        return batch

    def over(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same for one batch after the other."""
        return map(self, batches)
