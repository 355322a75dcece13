"""The quick part of the suite as other machines would run it: `make machines`.

The last bits of a float depend on the kernels that the libraries choose for a processor, and on the number of
threads.  Environment variables make torch, MKL, OpenBLAS and numpy choose others; each run here also has another
seed for hashes and another order of the tests.  What a test asserts must hold in all of them.
"""

import os
import subprocess
import sys
import time

#: what is computed: formulas, training, estimators, and what tools and the command line make of them
ROOMS = [f"tests/{room}" for room in ("core", "training", "estimators", "views", "persistence", "tuning", "tables")]
ROOMS += ["tests/cli/test_cli_models.py", "tests/project/test_golden.py"]
#: MKL_ENABLE_INSTRUCTIONS counts on Intel's processors, MKL_CBWR on others, too
MACHINES = {
    "no vectors": {
        "ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
    },
    "avx2, three threads": {
        "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "MKL_CBWR": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell", "ENERGATE_TEST_THREADS": "3",
    },
    "plain kernels over MKL's own": {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"},
    "as it is, three threads": {"ENERGATE_TEST_THREADS": "3"},
}  # fmt: skip


def run(settings: dict[str, str], number: int, options: list[str]) -> int:
    """The exit code of the tests under these settings."""
    order = {"PYTHONHASHSEED": str(number), "ENERGATE_TEST_ORDER": str(number), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "pytest", "-q", "-r", "fE", "-n", "auto", "--dist", "worksteal"]
    command += ["-m", "not slow and not data and not gpu", *(options or ROOMS)]
    return subprocess.run(command, env={**os.environ, **order, **settings}, check=False).returncode


if __name__ == "__main__":
    failed = []
    for number, (name, settings) in enumerate(MACHINES.items(), 1):
        print(
            f"== {name}: {' '.join(f'{key}={value!r}' for key, value in settings.items())}, order {number}", flush=True
        )
        start = time.monotonic()
        if run(settings, number, sys.argv[1:]):
            failed.append(name)
        print(f"   {time.monotonic() - start:.0f} s", flush=True)
    sys.exit(f"Failed: {'; '.join(failed)}." if failed else 0)
