"""How many threads of the processor a `fit` takes: one for small work.

Threads of torch wait for each other after every operation, without sleep.  The steps of small models are hundreds of
operations of some microseconds, of which two threads save a third at best.  Where anything else runs on the machine,
each wait becomes one for the scheduler: the same `fit` then takes ten times as long.  So training on few numbers takes
one thread, whatever torch is set to, and training on more as many as torch is set to (`torch.set_num_threads`,
OMP_NUM_THREADS).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 1_000_000  # numbers in the rows that are trained on


@contextmanager
def threads_for(n_numbers: int) -> Iterator[None]:
    """One thread for so few numbers, else as many as there were; afterwards as before."""
    n_threads = torch.get_num_threads()
    if n_numbers >= SMALL or n_threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
