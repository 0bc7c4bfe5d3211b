"""Plant a bug and run tests: the first that fails finds it.

    PYTHONPATH=tests python -m sim.mutants.by_tests "its words" tests/unit/ledger

For a bug that no seed finds this says which test does (``test`` in its list).  Each bug has a
child of this process, which has imported everything once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from sim.mutants.planting import all_mutants, planted

ROOT = Path(__file__).parents[3]
_OPTIONS = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:xdist", "-p", "no:cacheprovider")
_LIMIT_S = 600


class _FirstFailure:
    """Notes which test failed first."""

    test: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.test is None:
            self.test = report.nodeid


def failing_tests(tests: Mapping[str, str]) -> dict[str, str | None]:
    """Return by the words of a bug the first test that fails with it; None if none does.

    Args:
        tests: By the words of a bug what to run, as pytest has it.
    """
    done = subprocess.run(
        [sys.executable, "-m", "sim.mutants.by_tests", json.dumps(dict(tests))],
        cwd=ROOT,
        env={"PYTHONPATH": "tests", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{done.stdout}{done.stderr}")
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


def _failing_test(what: str, test: str) -> str | None:
    """Run tests in a child that has the bug."""
    with tempfile.TemporaryFile("w+") as answer:
        child = os.fork()
        if child == 0:
            failure, code = _FirstFailure(), pytest.ExitCode.INTERNAL_ERROR
            try:
                (mutant,) = [each for each in all_mutants() if what == each.what]
                with planted(mutant):
                    code = pytest.ExitCode(pytest.main([*_OPTIONS, test], plugins=[failure]))
                answer.write(failure.test or "")
                answer.flush()
            finally:
                os._exit(code)
        code = pytest.ExitCode(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise ValueError(f"{what}: {test} cannot be run")
        answer.seek(0)
        return answer.read() or None


def main(words: list[str]) -> int:
    """Plant each bug in turn and run tests with it."""
    tests = json.loads(words[0]) if len(words) == 1 else {words[0]: words[1]}
    print("\n" + json.dumps({what: _failing_test(what, test) for what, test in tests.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
