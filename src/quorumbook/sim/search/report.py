"""What many seeds did, in numbers: printed, and written as a page for docs/reports."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from quorumbook.sim.life import Outcome
from quorumbook.sim.search.sometimes import SOMETIMES


class Tally:
    """The sums of many outcomes."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.mishaps: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.sightings: Counter[str] = Counter()
        self.virtual_s = 0.0
        self.processor_s = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count an outcome."""
        self.sums["seeds"] += 1
        self.sums["seeds that broke a promise"] += bool(outcome.violations)
        self.sums["ledgers"] += outcome.ledgers
        self.sums["acknowledged entries"] += outcome.acknowledged
        self.sums["acknowledged records"] += outcome.records
        self.sums["events"] += outcome.events
        self.mishaps.update(outcome.mishaps)
        self.phases[outcome.phase or "none"] += 1
        self.sightings.update(outcome.sightings)
        self.virtual_s += outcome.virtual_s
        self.processor_s += outcome.processor_s

    def lines(self) -> list[str]:
        """Return the sums for a terminal."""
        rate = self.sums["seeds"] / max(self.processor_s, 1e-9)
        hours = self.virtual_s / 3600
        lines = [f"{hours:.2f} virtual hours, {rate:.1f} seeds a second of processor time"]
        for counter in (self.sums, self.phases, self.mishaps):
            lines += [f"{count:10d} {name}" for name, count in sorted(counter.items())]
        lines += [f"{self.sightings[name]:10d} {name}" for name in SOMETIMES]
        return lines

    def page(self, seeds: range, mutants: Path | None) -> str:
        """Return a page; ``mutants`` is what the search for planted bugs wrote."""
        rate = self.sums["seeds"] / max(self.processor_s, 1e-9)
        lines = [
            "# Simulation",
            "",
            "A whole cluster in one process, on virtual time, network, disks and metadata, from "
            "one seed (`make simulate`, `ARCHITECTURE.md` says how).",
            "",
            f"Seeds {seeds.start} to {seeds.stop - 1}: {self.virtual_s / 3600:.1f} virtual hours, "
            f"{rate:.1f} seeds a second of one core.",
            "",
            *_table("sum", self.sums),
            *_table("directed phase", self.phases),
            *_table("mishap", self.mishaps),
            "Rare states that seeds reached:",
            "",
            *_table("state", {name: self.sightings[name] for name in SOMETIMES}),
        ]
        if mutants is not None and mutants.is_file():
            lines += planted_bugs(json.loads(mutants.read_text(encoding="utf-8")))
        return "\n".join(lines)


def _table(what: str, counts: dict[str, int] | Counter[str]) -> list[str]:
    rows = [f"| {name.replace('_', ' ')} | {counts[name]:,} |" for name in counts]
    return [f"| {what} | count |", "|---|---|", *rows, ""]


def planted_bugs(findings: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a page about planted bugs, as a search for them found them."""
    found = [each for each in findings if each["seed"] is not None]
    rows = [
        f"| {each['area']} | {each['what']} | {_after(each)} | {_directed(each)} |"
        for each in sorted(findings, key=lambda each: (each["area"], each["what"]))
    ]
    return [
        "## Planted bugs",
        "",
        f"{len(findings)} bugs were planted, one at a time; seeds found {len(found)} of them.",
        "",
        "| area | bug | found after so many seeds | of which |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


def _after(finding: dict[str, Any]) -> str:
    if finding["seed"] is None:
        return f"not by {finding['tried']}"
    return str(finding["tried"])


def _directed(finding: dict[str, Any]) -> str:
    return f"each in phase {finding['phase']}" if finding.get("phase") else "as they come"
