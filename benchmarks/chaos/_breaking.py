"""What the scripts of this folder share: bytes that are damaged, processes, and the line of counts."""

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "chaos.jsonl"


def scarred(
    data: bytes,
    rng: random.Random,
    times: Sequence[int],
    lengths: Sequence[int],
    junk: Callable[[random.Random, int], bytes] = random.Random.randbytes,
) -> bytes:
    """Some bytes flipped, cut out, doubled, overwritten or put in; perhaps the end is gone."""
    found = bytearray(data)
    for _ in range(rng.choice(times)):
        place, n = rng.randrange(len(found) + 1), rng.choice(lengths)
        match rng.randrange(5):
            case 0 if place < len(found):
                found[place] ^= 1 << rng.randrange(8)
            case 1:
                del found[place : place + n]
            case 2:
                found[place:place] = found[place : place + n]
            case 3:
                found[place : place + n] = rng.randbytes(n)
            case _:
                found[place:place] = junk(rng, n)
    return bytes(found[: rng.randrange(len(found) + 1)] if rng.random() < 0.2 else found)


def forked(work: Callable[[], object]) -> int:
    """The number of a process that does something and ends, with 1 if that fails."""
    process = os.fork()
    if process == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}"[:500], file=sys.stderr, flush=True)
            os._exit(1)
    return process


def tell(line: dict[str, Any], results: Path, wrong: Sequence[str]) -> None:
    """Print the counts, add them to a file, and end with an error if anything ended otherwise than it should."""
    print(json.dumps(line, indent=1))
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")
    if wrong:
        sys.exit("\n".join(wrong[:50]))
