"""How long it takes to begin: importing energate, and help and version of its command line, beside plain Python.

One JSON line per case: the median of some runs of a new process, on the clock and in processor time, and what that is
beyond `python -c pass` in the same round.

    python benchmarks/start.py [--rounds 9]
"""

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time

CASES = {
    "python -c pass": ["-c", "pass"],
    "import energate": ["-c", "import energate"],
    "energate --help": ["-m", "energate", "--help"],
    "energate fit --help": ["-m", "energate", "fit", "--help"],
    "energate --version": ["-m", "energate", "--version"],
}


def once(arguments: list[str]) -> tuple[float, float]:
    """Seconds of a process: on the clock, and of the processor."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = [{name: once(case) for name, case in CASES.items()} for _ in range(parser.parse_args().rounds)]
    plain = next(iter(CASES))
    for name in CASES:
        clock, cpu = (statistics.median(each[name][i] for each in rounds) for i in (0, 1))
        more = statistics.median(each[name][0] - each[plain][0] for each in rounds)
        line = {"case": name, "seconds": round(clock, 3), "cpu_seconds": round(cpu, 3), "beyond_plain": round(more, 3)}
        print(json.dumps({**line, "rounds": len(rounds), "python": platform.python_version()}))


if __name__ == "__main__":
    main()
