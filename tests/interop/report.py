"""Writes docs/reports/interop.md from the outcomes of a run of everything in this directory."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from interop.peer_java import POM, find_jars
from interop.sides import TRIPLES

REPORT = Path(__file__).parents[2] / "docs" / "reports" / "interop.md"
_SIDE = "java-v2|java-v3|own"
_TRIPLE = re.compile(rf"({_SIDE})(?:-to)?-(own|java|mixed)(?:-to)?-({_SIDE})\b")


@dataclass
class Outcomes:
    """How many cells of a test passed, and which did not."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def add(self, cell: str, *, has_passed: bool) -> None:
        if has_passed:
            self.passed += 1
        else:
            self.failed.append(cell)

    def __str__(self) -> str:
        count = self.passed + len(self.failed)
        return f"**{self.passed} of {count}**" if self.failed else str(count)


class Report:
    """What happened, gathered test by test."""

    def __init__(self) -> None:
        self._by_triple: dict[str, dict[tuple[str, ...], Outcomes]] = {}
        self._others: dict[str, Outcomes] = {}
        self._total = Outcomes()
        self._seconds = 0.0

    def add(self, node_id: str, outcome: str, seconds: float) -> None:
        """Take one test's outcome; a skipped one is none."""
        self._seconds += seconds
        test, _, cell = node_id.partition("::")[2].partition("[")
        if outcome == "skipped":
            return
        has_passed = outcome == "passed"
        self._total.add(node_id, has_passed=has_passed)
        triple = _TRIPLE.match(cell)
        if triple:
            rows = self._by_triple.setdefault(test, defaultdict(Outcomes))
            rows[triple.groups()].add(cell, has_passed=has_passed)
        else:
            self._others.setdefault(test, Outcomes()).add(cell, has_passed=has_passed)

    def write(self, path: Path = REPORT) -> None:
        """Write the page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self._lines()) + "\n", encoding="utf-8")

    def _lines(self) -> list[str]:
        return [
            "# Both sides in one cluster, cell by cell",
            "",
            "`make interop-full` runs the real peer and Quorumbook against each other, in all"
            " combinations.",
            f"{self._total.passed + len(self._total.failed)} cells ran in {self._seconds:.0f} s,"
            f" {len(self._total.failed)} failed.",
            "",
            *_versions(),
            "",
            *self._triples(),
            "",
            *self._rest(),
        ]

    def _triples(self) -> list[str]:
        tests = list(self._by_triple)
        lines = [
            "## Who writes, whose bookies, who reads",
            "",
            "Each number says how many cells passed; a dash stands where the side has no such"
            " operation. The columns are:",
            "",
            *(f"{number}. `{test}`" for number, test in enumerate(tests, 1)),
            "",
            f"| writer | bookies | reader |{''.join(f' {n} |' for n in range(1, len(tests) + 1))}",
            "|---|---|---|" + "---|" * len(tests),
        ]
        for triple in TRIPLES:
            found = (str(self._by_triple[test].get(triple, "-")) for test in tests)
            lines.append(f"| {' | '.join((*triple, *found))} |")
        return lines

    def _rest(self) -> list[str]:
        lines = ["## Everything else", "", "| test | cells that passed |", "|---|---|"]
        lines += [f"| `{test}` | {found} |" for test, found in self._others.items()]
        if self._total.failed:
            lines += ["", "## What failed", "", *(f"- `{each}`" for each in self._total.failed)]
        return lines


def _versions() -> list[str]:
    jars = find_jars()
    zookeeper = re.search(r"/zookeeper-([\d.]+)\.jar", jars)
    peer = re.search(r"bookkeeper-server</artifactId>\s*<version>([\d.]+)<", POM.read_text())
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    rows = {
        "Apache BookKeeper": peer[1] if peer else "?",
        "ZooKeeper": zookeeper[1] if zookeeper else "?",
        "Java": java.stderr.splitlines()[0],
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, "
        f"{os.cpu_count()} processors",
    }
    return ["| what | which |", "|---|---|", *(f"| {name} | {it} |" for name, it in rows.items())]
