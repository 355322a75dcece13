"""The tests of an extra with the lowest versions that it allows: `python tests/lowest.py [serve|skops]`.

They are installed into a folder of their own, which comes before what is installed already; needs the internet, or
another place that pip takes packages from.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = {
    "serve": [
        "tests/serving/test_serving.py",
        "tests/serving/test_serving_chaos.py",
        "tests/serving/test_serving_questions.py",
    ],
    "skops": ["tests/persistence/test_refiner_saving.py"],
}


def lowest(extra: str) -> list[str]:
    """The requirements of an extra, each at its lower bound."""
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    return [re.sub(r">=([\w.]+)", r"==\1", each) for each in required]


def run(extra: str, options: list[str]) -> int:
    """The exit code of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", folder]
        subprocess.run([*install, *lowest(extra)], check=True)
        before = [folder, str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[extra], *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(before)}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each in TESTS]
    rest = [each for each in sys.argv[1:] if each not in TESTS]
    for extra in given or list(TESTS):
        print(f"== {' '.join(lowest(extra))}", flush=True)
        if code := run(extra, rest):
            sys.exit(code)
