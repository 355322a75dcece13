"""The packages that development, tests and the demo stand on: their hashes, their licences, and advisories about them.

    python .ci/packages.py lock       write requirements.lock: every package but torch, with the hashes of its files
    python .ci/packages.py licences   list the licences; fails at one that is not known, or not allowed
    python .ci/packages.py audit      ask pip-audit about requirements.lock; says "skipped" where it cannot be asked

torch is left out of the lock, and with it what only torch needs: which file is its build for processors alone, and
which libraries a build for GPUs brings along, differs by platform and index.  With the lock, and nothing else:

    pip install torch==...                                   # the pin of requirements.txt
    pip install --no-deps --require-hashes -r requirements.lock
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).parents[1]
PINS, LOCK = ROOT / "requirements.txt", ROOT / "requirements.lock"
APART = "torch"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
SECONDS = 120

#: licences of packages that a BSD program may be built on, and given away with; parts of expressions of SPDX
ALLOWED = {
    *("MIT", "MIT-0", "MIT-CMU", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "Apache-2.0", "PSF-2.0", "Python-2.0"),
    *("MPL-2.0", "Unlicense", "HPND", "Zlib", "CC0-1.0", "BSL-1.0", "Apache-2.0 WITH LLVM-exception", "CNRI-Python"),
}
#: how licences are called where a package does not use SPDX; the first that is found in its words counts
WORDS = {
    "Apache": "Apache-2.0", "MIT": "MIT", "BSD 2": "BSD-2-Clause", "BSD-2": "BSD-2-Clause",
    "BSD": "BSD-3-Clause", "Mozilla Public License 2.0": "MPL-2.0", "MPL": "MPL-2.0", "ISC": "ISC", "PSF": "PSF-2.0",
    "Python Software Foundation": "PSF-2.0", "Unlicense": "Unlicense", "HPND": "HPND", "Zlib": "Zlib",
}  # fmt: skip
#: read in the package itself, since its metadata does not say it
READ = {"skops": "MIT"}


def pins() -> dict[str, Requirement]:
    """What requirements.txt pins, by name."""
    lines = [line.partition("#")[0].strip() for line in PINS.read_text().splitlines()]
    found = [Requirement(line) for line in lines if line]
    return {canonicalize_name(each.name): each for each in found}


def closure() -> dict[str, metadata.Distribution]:
    """The pinned packages and all that these need here, but for torch and what only torch needs."""
    found: dict[str, metadata.Distribution] = {}
    open_ = [each for name, each in pins().items() if name != APART]
    while open_:
        wanted = open_.pop()
        name = canonicalize_name(wanted.name)
        if name == APART or (name in found and not wanted.extras):
            continue
        found[name] = metadata.distribution(name)
        for line in found[name].requires or ():
            needed = Requirement(line)
            extras = ["", *wanted.extras]
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                open_.append(needed)
    return dict(sorted(found.items()))


# --- hashes ------------------------------------------------------------------------------------------------------


def hashes(name: str, version: str) -> list[str]:
    """The sha256 of all files of a version, for every platform."""
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=SECONDS) as answer:
        page = answer.read().decode()
    found = set()
    for file, digest in re.findall(r'href="[^"#]*/([^"#/]+)#sha256=([0-9a-f]{64})"', page):
        try:
            of = parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1]
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue
        if str(of) == version:
            found.add(digest)
    if not found:
        raise SystemExit(f"{INDEX} has no files of {name} {version} with hashes.")
    return sorted(found)


def lock() -> None:
    """Write requirements.lock."""
    packages = {name: each.version for name, each in closure().items()}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(hashes, packages, packages.values()))
    lines = [
        "# Every package of requirements.txt, and what these need, with the hashes of all files: `make lock`.",
        f"# {APART} is not here, nor what only {APART} needs: its files differ by platform and index.  To install:",
        f"#   pip install '{pins()[APART]}'",
        "#   pip install --no-deps --require-hashes -r requirements.lock",
    ]
    for (name, version), digests in zip(packages.items(), found, strict=True):
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in digests)]))
    LOCK.write_text("\n".join(lines) + "\n")
    print(f"{LOCK.name}: {len(packages)} packages, {sum(map(len, found))} hashes")


# --- licences ----------------------------------------------------------------------------------------------------


def licence(package: metadata.Distribution) -> str:
    """An expression of SPDX, or what the package says itself."""
    about = package.metadata
    name = canonicalize_name(about["Name"])
    if name in READ:
        return READ[name]
    if expression := about.get("License-Expression"):
        return expression
    told = [each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if each.startswith("License ::")]
    told = [each for each in told if each != "OSI Approved"] or [(about.get("License") or "").splitlines()[0:1]]
    words = " AND ".join(str(each[0] if isinstance(each, list) and each else each) for each in told)
    try:
        return canonicalize_license_expression(words)
    except InvalidLicenseExpression:
        known = [spdx for called, spdx in WORDS.items() if called.lower() in words.lower()]
        return known[0] if known and "GPL" not in words else words or "unknown"


def is_allowed(expression: str) -> bool:
    """Whether one side of every OR, and all sides of every AND, are allowed."""
    inner = expression.replace("(", " ").replace(")", " ")
    if "(" not in expression:
        return any(all(each.strip() in ALLOWED for each in side.split(" AND ")) for side in inner.split(" OR "))
    return all(each in ALLOWED for each in re.split(r" (?:AND|OR) ", " ".join(inner.split())))


def licences() -> list[str]:
    """Print the licences of all packages; those that are not allowed are given back."""
    packages = {**closure(), APART: metadata.distribution(APART)}
    found = {f"{name} {each.version}": licence(each) for name, each in packages.items()}
    for name, expression in found.items():
        print(f"{name}: {expression}{'' if is_allowed(expression) else '   NOT ALLOWED'}")
    return [f"{name}: {expression}" for name, expression in found.items() if not is_allowed(expression)]


# --- advisories --------------------------------------------------------------------------------------------------


def skipped(why: str) -> None:
    """Say that nobody was asked."""
    print(f"audit: skipped: {' '.join(why.split())[:200]}")


def audit() -> list[str]:
    """The advisories that pip-audit knows of; none where it, its service or a network is not there."""
    with tempfile.TemporaryDirectory() as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["--retries", "0", "--timeout", "15", "--target", folder, "pip-audit"]
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--disable-pip", "--format", "json"]
        settings = {**os.environ, "PYTHONPATH": folder}
        try:
            subprocess.run(install, check=True, capture_output=True, timeout=SECONDS)
            done = subprocess.run(
                [*command, "--progress-spinner", "off"],
                env=settings, check=False, capture_output=True, timeout=SECONDS, text=True,
            )  # fmt: skip
            told = json.loads(done.stdout)["dependencies"]
        except (subprocess.SubprocessError, OSError) as error:
            skipped(f"pip-audit could not be installed or did not end ({type(error).__name__}).")
            return []
        except (ValueError, KeyError):
            skipped(f"the service did not answer ({(done.stderr.strip().splitlines() or ['nothing'])[-1]}).")
            return []
    asked = [each for each in told if "skip_reason" not in each]
    if not asked:
        skipped(f"the service knows none of the {len(told)} packages.")
        return []
    found = [f"{each['name']} {each['version']}: {bad['id']}" for each in asked for bad in each["vulns"]]
    print(f"audit: {len(asked)} of {len(told)} packages looked up, {len(found)} advisories")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("lock", "licences", "audit"))
    wanted = parser.parse_args().what
    if wanted == "lock":
        lock()
    else:
        wrong = licences() if wanted == "licences" else audit()
        sys.exit("\n".join(["Not as it should be:", *wrong]) if wrong else 0)
