"""Tries the package on the other Pythons of this machine, and on the oldest dependencies it takes.

    python -m tools.pythons [--all] [--fetch]

CI runs all tests on one Python, with the versions of ``requirements.lock``.  Here each other Python
from 3.11 to 3.14 that is found gets an environment with the same versions, for a while, in
``build/pythons``; one more has the oldest versions that ``pyproject.toml`` takes
(``requirements-oldest.txt``).  In each, every module is imported, and the tests of ``TESTS`` run:
the rooms that know most of the language and of other packages.  With ``--all`` all unit and
property tests run, which CI has no time for.  With ``--fetch``, which CI gives, a Python that is
not there is brought from Debian's packages (``tools/debian_python.py``).  One that cannot be had is
named, and is not a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import debian_python

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / "build" / "pythons"
MINORS = (11, 12, 13, 14)
EXTRAS = "arrow,etcd,schema"
OLDEST = ROOT / "requirements-oldest.txt"
#: Half a minute on two cores.
TESTS = (
    *(
        f"tests/unit/{room}"
        for room in ("auth", "cli", "config", "env", "ledger", "metadata", "protocol", "streams")
    ),
    *(f"tests/property/test_property_{part}.py" for part in ("protocol", "stream_formats")),
    # Two that measure memory, or try very many damages, take a quarter of all the time.
    "--deselect=tests/unit/metadata/test_metadata_dump.py"
    "::test_memory_does_not_grow_with_the_number_of_ledgers",
    "--deselect=tests/unit/cli/test_cli_disk.py"
    "::test_what_a_start_refuses_starts_after_fsck_and_nothing_is_silently_wrong",
)
#: A minute and a half. What is left out needs packages of other extras.
ALL_TESTS = (
    "tests/unit",
    "tests/property",
    "--ignore=tests/unit/storage/test_storage_peer_index.py",
    "--ignore=tests/unit/client/test_client_ledger_tables.py",
    "--ignore=tests/unit/otel",
)

#: Modules that want a package of an extra that is not installed here are left out.
_IMPORT_ALL = """
import importlib, pkgutil, sys, quorumbook
names = [each.name for each in pkgutil.walk_packages(quorumbook.__path__, "quorumbook.",
         onerror=lambda name: None) if not each.name.endswith("__main__")]
left_out, count = set(), 0
for name in names:
    try:
        importlib.import_module(name)
        count += 1
    except ModuleNotFoundError as error:
        left_out.add(str(error.name).partition(".")[0])
print(f"{count} of {len(names)} modules imported; not installed:", *sorted(left_out))
sys.exit(bool(left_out - set(sys.argv[1].split(","))))
"""
_MAY_LACK = ",".join(
    ("deltalake", "gssapi", "opentelemetry", "pandas", "py4j", "pyiceberg", "pyspark",
     "rocksdict", "sqlalchemy")
)  # fmt: skip


def interpreters() -> dict[int, str]:
    """Return the Pythons of this machine by the minor number of their version."""
    roots = [Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")]
    roots.append(Path.home() / ".local" / "share" / "uv" / "python")
    roots.append(debian_python.HOME)
    found = {}
    for minor in MINORS:
        name = f"python3.{minor}"
        candidates = [shutil.which(name) or name]
        for root in roots:
            candidates += map(str, sorted(root.glob(f"**/bin/{name}")) if root.is_dir() else ())
        for path in candidates:
            if works(path, minor):
                found[minor] = path
                break
    return found


def works(path: str, minor: int) -> bool:
    """Tell whether that is a Python of this version; shims of pyenv may be empty."""
    code = f"import sys, venv; sys.exit(sys.version_info[:2] != (3, {minor}))"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def locked() -> Iterator[str]:
    """Return the lines of requirements.lock without digests: a tree of files has none."""
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        if re.match(r"[A-Za-z0-9]", line):
            yield line.removesuffix(" \\")


def prepared(name: str, python: str, oldest: bool) -> Path:
    """Make an environment, and return its Python."""
    directory = ENVIRONMENTS / name
    shutil.rmtree(directory, ignore_errors=True)
    run(python, "-m", "venv", "--without-pip", str(directory))
    own = directory / "bin" / "python"
    constraints = ENVIRONMENTS / "constraints.txt"
    constraints.write_text("\n".join(locked()) + "\n", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "--python", str(own))
    # What is imported is compiled then; the rest, which is most, need not be.
    install = (*pip, "install", "--quiet", "--no-compile")
    run(*install, "--constraint", str(constraints), "--group", f"{ROOT}/pyproject.toml:test")
    chosen = OLDEST if oldest else constraints
    run(*install, "--constraint", str(chosen), f"{ROOT}[{EXTRAS}]")
    if not oldest:  # what tests need of others asks for newer ones
        run(*pip, "check")
    return own


def run(*words: str) -> None:
    """Run a command; its failure ends everything."""
    subprocess.run(words, cwd=ROOT, check=True)


def tried(name: str, python: str, tests: Sequence[str], *, oldest: bool = False) -> bool:
    """Try one environment; tell whether everything passed."""
    began = time.monotonic()
    own = str(prepared(name, python, oldest))
    steps = (
        [own, "-c", _IMPORT_ALL, _MAY_LACK],
        [own, "-m", "pytest", "-n", "auto", "--dist", "loadgroup", *tests],
    )
    # No test is left out for want of a tool in CI, but here many tools are.
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    passed = all(
        subprocess.run(step, cwd=ROOT, check=False, env=environment).returncode == 0
        for step in steps
    )
    result = "passed" if passed else "FAILED"
    shutil.rmtree(ENVIRONMENTS / name)
    print(f"{name}: {result} in {time.monotonic() - began:.0f} s", flush=True)
    return passed


def main() -> int:
    """Try all; return the exit code."""
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    found = interpreters()
    for minor in (each for each in MINORS if each not in found):
        try:
            if "--fetch" in sys.argv:
                found[minor] = str(debian_python.fetched(minor))
                continue
            why = "--fetch brings it from Debian's packages"
        except subprocess.CalledProcessError as error:
            why = str(error.stderr).strip().rpartition("\n")[2]
        except (OSError, subprocess.TimeoutExpired) as error:
            why = str(error)
        print(f"3.{minor} is not on this machine, so it is not tried: {why}", flush=True)
    own = sys.version_info[1]
    tests = ALL_TESTS if "--all" in sys.argv else TESTS
    results = [tried(f"3.{minor}", path, tests) for minor, path in found.items() if minor != own]
    results.append(tried(f"3.{own}-oldest", sys.executable, tests, oldest=True))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
