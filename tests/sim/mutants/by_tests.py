"""Plant a bug and run tests: the first that fails finds it.

    PYTHONPATH=tests python -m sim.mutants.by_tests "a part of its words" tests/unit/ledger

For a bug that no seed finds this says which test does (``test`` in its list).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from sim.mutants.planting import all_mutants, planted

ROOT = Path(__file__).parents[3]
_OPTIONS = ("-x", "-q", "--no-header", "--tb=no", "-rfE", "-p", "no:xdist")
_LIMIT_S = 300


def failing_test(what: str, tests: Sequence[str]) -> str | None:
    """Return the first of some tests that fails with the bug of these words; None if none does."""
    done = subprocess.run(
        [sys.executable, "-m", "sim.mutants.by_tests", what, *tests],
        cwd=ROOT,
        env={"PYTHONPATH": "tests", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ValueError(f"{what}: {tests} cannot be run: {done.stdout}{done.stderr}")
    failed = [line.split(" ")[1] for line in done.stdout.splitlines() if line[:7] == "FAILED "]
    return failed[0] if failed else None


def main(words: Sequence[str]) -> int:
    """Plant the bug of these words and run tests with it."""
    (mutant,) = [each for each in all_mutants() if words[0] == each.what]
    with planted(mutant):
        return pytest.main([*_OPTIONS, *words[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
