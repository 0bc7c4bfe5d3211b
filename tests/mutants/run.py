"""Plant each listed bug in a copy of the sources and see the test named beside it fail.

``*.toml`` beside this file list the bugs, one file for each area::

    [[mutant]]
    what = "the bug in words"
    file = "src/quorumbook/storage/checkpoint/visible_ledgers.py"
    old = '''text that occurs exactly once in the file'''
    new = '''what stands there instead'''
    test = "tests/unit/storage/test_storage_book.py::test_name"

A test counts only if it passes on the sources as they are.  Ends with 1 if a bug survives.

    python tests/mutants/run.py --only journal --report docs/reports/mutants.md
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: A bug may make its test hang; pytest's own limit for a single test is below this.
LIMIT_S = 600
_KILLED = 1


@dataclass(frozen=True)
class Mutant:
    """A bug to be planted."""

    area: str
    what: str
    file: str
    old: str
    new: str
    test: str

    @property
    def problem(self) -> str | None:
        """Say why it cannot be planted, or None."""
        source = ROOT / self.file
        count = source.read_text(encoding="utf-8").count(self.old) if source.is_file() else 0
        if count != 1:
            return f"{self.area}: {self.what}: its text is {count} times in {self.file}"
        return None

    def plant(self, sources: Path) -> None:
        """Change the copy of the sources in a directory."""
        path = sources / Path(self.file).relative_to("src")
        path.write_text(
            path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8"
        )


def all_mutants() -> list[Mutant]:
    """Read the lists."""
    return [
        Mutant(path.stem, **each)
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for each in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


def run_tests(tests: Iterable[str], mutant: Mutant | None = None) -> int:
    """Run tests against a copy of the sources; return pytest's exit code."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        sources = Path(directory) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            mutant.plant(sources)
        command = [sys.executable, "-m", "pytest", "-x", "--no-header", *tests]
        temporary = f"--basetemp={directory}/pytest"
        environment = os.environ | {"PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            return subprocess.run(
                [*command, temporary], cwd=ROOT, env=environment, timeout=LIMIT_S, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return _KILLED


def judge(mutant: Mutant) -> bool:
    """Plant a bug; tell whether its test failed."""
    code = run_tests([mutant.test], mutant)
    print(f"{'killed  ' if code == _KILLED else 'SURVIVED'}  {mutant.area}: {mutant.what}")
    return code == _KILLED


def report_of(mutants: Sequence[Mutant], killed: Sequence[bool]) -> str:
    """Return the report."""
    rows = [
        f"| {each.what} | `{each.file.removeprefix('src/quorumbook/')}` | "
        f"{'killed by' if dead else '**survives**'} `{each.test.rpartition('::')[2]}` |"
        for each, dead in zip(mutants, killed, strict=True)
    ]
    return "\n".join(
        [
            "# Planted bugs",
            "",
            f"`make mutants` planted {len(mutants)} bugs, one at a time, in a copy of the sources; "
            f"{sum(killed)} were found by the test named beside them.",
            "",
            "| bug | where | test |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="areas, separated by commas")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    areas = {area for area in options.only.split(",") if area}
    mutants = [each for each in all_mutants() if not areas or each.area in areas]
    problems = [each.problem for each in mutants if each.problem]
    if problems or not mutants:
        print("\n".join(problems) or "no such area", file=sys.stderr)
        return 1
    if code := run_tests(sorted({each.test for each in mutants})):
        print(f"the tests fail without any bug (pytest ended with {code})", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(options.workers) as pool:
        killed = list(pool.map(judge, mutants))
    if options.report:
        options.report.write_text(report_of(mutants, killed), encoding="utf-8")
    return 0 if all(killed) else 1


if __name__ == "__main__":
    sys.exit(main())
