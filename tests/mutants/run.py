"""Plant each listed bug in a copy of the sources and see the test named beside it fail.

``*.toml`` beside this file list the bugs, one file for each area::

    [[mutant]]
    what = "the bug in words"
    file = "src/quorumbook/storage/checkpoint/visible_ledgers.py"
    old = '''text that occurs exactly once in the file'''
    new = '''what stands there instead'''
    test = "tests/unit/storage/test_storage_book.py::test_name"

A test counts only if it passes on the sources as they are.  Ends with 1 if a bug survives.  The
report keeps what it says of areas that are not asked for, and says of which bugs it knows nothing;
beside each fate it names the revision.  ``--untried`` plants those only.

    python tests/mutants/run.py --only journal --report docs/reports/mutants.md
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: A bug may make its test hang; pytest's own limit for a single test is below this.
LIMIT_S = 600
_KILLED = 1
_UNKNOWN = "not tried"


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
    def row(self) -> str:
        """What the report says of it, up to what became of it."""
        return f"| {self.area} | {self.what} | `{self.file.removeprefix('src/quorumbook/')}` |"

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
        # With what is compiled: all but what is planted is taken as it is.
        shutil.copytree(ROOT / "src", sources)
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
    word = "killed  " if code == _KILLED else "SURVIVED"
    print(f"{word}  {mutant.area}: {mutant.what}", flush=True)
    return code == _KILLED


def report_of(mutants: Sequence[Mutant], fates: Mapping[str, str]) -> str:
    """Return the report; ``fates`` says by row what became of a bug."""
    killed = sum(fate.startswith("killed") for fate in fates.values())
    return "\n".join(
        [
            "# Planted bugs",
            "",
            f"`make mutants` plants {len(mutants)} bugs, one at a time, in a copy of the sources; "
            f"{killed} were found by the test named beside them. The newest by "
            f"{platform.system()} {platform.release()}, {os.cpu_count()} processors, "
            f"Python {platform.python_version()}.",
            "",
            "| area | bug | where | what became of it |",
            "|---|---|---|---|",
            *(f"{each.row} {fates[each.row]} |" for each in mutants),
            "",
        ]
    )


def fates_of(report: Path, mutants: Sequence[Mutant]) -> dict[str, str]:
    """Return what a report says became of each bug, by its row."""
    lines = report.read_text(encoding="utf-8").splitlines() if report.is_file() else []
    found = {row + " |": fate for row, _, fate in (line[:-2].rpartition(" | ") for line in lines)}
    return {
        each.row: fate if (fate := found.get(each.row, "")).endswith(_name(each)) else _UNKNOWN
        for each in mutants
    }


def revision() -> str:
    """Return which sources these are."""
    words = ("git", "describe", "--always", "--dirty=+")
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()  # fmt: skip


def _name(mutant: Mutant) -> str:
    return f"`{mutant.test.rpartition('::')[2]}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="areas, separated by commas")
    parser.add_argument("--untried", action="store_true", help="of which the report says nothing")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    known = all_mutants()
    areas = set(options.only.split(",")) if options.only else {each.area for each in known}
    problems = [each.problem for each in known if each.problem]
    if problems or not areas <= {each.area for each in known}:
        print("\n".join(problems) or "no such area", file=sys.stderr)
        return 1
    fates = fates_of(options.report, known) if options.report else {}
    code, now = 0, revision()
    with ThreadPoolExecutor(options.workers) as pool:
        for area in sorted(areas):
            mutants = [
                each
                for each in known
                if each.area == area
                and not (options.untried and fates.get(each.row, _UNKNOWN) != _UNKNOWN)
            ]
            if not mutants:
                continue
            if ended := run_tests(sorted({each.test for each in mutants})):
                print(f"{area}: tests fail without any bug (pytest ended with {ended})")
                code = 1
                continue
            for each, is_dead in zip(mutants, pool.map(judge, mutants), strict=True):
                fate = "killed" if is_dead else "**survives**"
                fates[each.row] = f"{fate} at {now} by {_name(each)}"
                code |= not is_dead
            if options.report:
                options.report.write_text(report_of(known, fates), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
