"""A worker in a process of its own: `python -m energate.jobs.worker`.

The first line of its input says what the job is, every other the number of a task; each gets a line in answer.  When
the input ends, or whoever gave it is dead, the process ends at once: a part that is not whole has no name yet.
"""

import json
import os
import sys
import threading
from dataclasses import asdict
from queue import SimpleQueue
from typing import IO, Any

from energate.errors import InputError, MissingExtraError


def main() -> None:
    """Answer until there are no more questions."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    lines = SimpleQueue[str]()
    threading.Thread(target=_listen, args=(sys.stdin, lines), daemon=True).start()
    from energate.jobs.work import Worker

    try:
        worker = Worker.of(json.loads(lines.get()))
        tasks = worker.job.tasks
        _say(answers, {"ready": True})
        while True:
            _say(answers, asdict(worker.do(tasks[int(lines.get())])))
    except (InputError, MissingExtraError) as error:
        _say(answers, {"error": str(error)})


def _listen(source: IO[str], lines: "SimpleQueue[str]") -> None:
    for line in source:
        lines.put(line)
    os._exit(0)  # the driver is done, or dead


def _say(answers: IO[str], found: dict[str, Any]) -> None:
    answers.write(json.dumps(found) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
