"""What many seeds did, in numbers: printed, kept from run to run, and a page for docs/reports."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import quorumbook
from quorumbook.sim.life import Outcome
from quorumbook.sim.search.sometimes import STATES

#: What stands below this heading of a page was written by people and stays.
_BY_PEOPLE = "## Found and mended"


class Tally:
    """The sums of many seeds."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.mishaps: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.sightings: Counter[str] = Counter()
        #: The first broken promise of a seed, in one line.
        self.violations: dict[int, str] = {}
        self.virtual_s = 0.0
        self.processor_s = 0.0

    @classmethod
    def decode(cls, kept: Mapping[str, Any]) -> Tally:
        """Return the sums that ``encode`` told."""
        tally = cls()
        tally.sums.update(kept["sums"])
        tally.mishaps.update(kept["mishaps"])
        tally.phases.update(kept["phases"])
        tally.sightings.update(kept["sightings"])
        tally.violations.update((int(seed), text) for seed, text in kept["violations"].items())
        tally.virtual_s, tally.processor_s = kept["virtual_s"], kept["processor_s"]
        return tally

    def encode(self) -> dict[str, Any]:
        """Return the sums for a file of JSON."""
        return dict(vars(self))

    def add(self, outcome: Outcome) -> None:
        """Count a seed."""
        self.sums["seeds"] += 1
        self.sums["seeds that broke a promise"] += bool(outcome.violations)
        self.sums["ledgers"] += outcome.ledgers
        self.sums["answers to clients"] += outcome.operations
        self.sums["copies of entries looked at on bookies"] += outcome.audited
        self.sums["acknowledged entries"] += outcome.acknowledged
        self.sums["acknowledged records"] += outcome.records
        self.sums["events"] += outcome.events
        self.mishaps.update(outcome.mishaps)
        self.phases[outcome.phase or "none"] += 1
        self.sightings.update(outcome.sightings)
        self.virtual_s += outcome.virtual_s
        self.processor_s += outcome.processor_s
        if outcome.violations:
            self.violations[outcome.seed] = outcome.violations[0].partition("\n")[0]

    def lines(self) -> list[str]:
        """Return the sums for a terminal."""
        rate = self.sums["seeds"] / max(self.processor_s, 1e-9)
        hours = self.virtual_s / 3600
        lines = [f"{hours:.2f} virtual hours, {rate:.1f} seeds a second of processor time"]
        for counter in (self.sums, self.phases, self.mishaps):
            lines += [f"{count:10d} {name}" for name, count in sorted(counter.items())]
        lines += [f"{self.sightings[name]:10d} {name}" for name in STATES]
        return lines

    def page(self, seeds: range, operations: int, mutants: Path | None, before: str) -> str:
        """Return a page.

        Args:
            seeds: Which they were.
            operations: How many each was to have, 0 if as many as it says.
            mutants: What the search for planted bugs wrote.
            before: The page that this one replaces.
        """
        seeds_ran = max(self.sums["seeds"], 1)
        rate = seeds_ran / max(self.processor_s, 1e-9)
        answers = self.sums["answers to clients"] / seeds_ran
        length = f" with mishaps for {operations} operations of clients" if operations else ""
        lines = [
            "# Simulation",
            "",
            "A whole cluster in one process, on virtual time, network, disks and metadata, from "
            "one seed (`make simulate`, `ARCHITECTURE.md` says how).",
            "",
            f"Seeds {seeds.start} to {seeds.stop - 1}{length}: {self.virtual_s / 3600:.1f} virtual "
            f"hours, {rate:.1f} seeds a second of one core, {answers:.0f} answers to clients each.",
            "",
            *_table("sum", self.sums),
            *(f"Seed {seed} broke a promise: {text}\n" for seed, text in self.violations.items()),
            *_table("directed phase", self.phases),
            *_table("mishap", self.mishaps),
            "Rare states that seeds reached:",
            "",
            *_table("state", {name: self.sightings[name] for name in STATES}),
        ]
        if mutants is not None and mutants.is_file():
            lines += _planted_bugs(mutants)
        _, heading, by_people = before.partition(_BY_PEOPLE)
        return "\n".join(lines) + heading + by_people


class Kept:
    """A file with the sums of the seeds that ran in their order, so that a long run can go on.

    It may go on elsewhere, with the same sources.  Sums of other sources, of another length, or of
    other seeds than the first of these, are another run's, and forgotten.

    Args:
        path: The file; it is made when it is first written. None keeps nothing.
        seeds: Which are to run.
        operations: How many each has, 0 if as many as it says.
    """

    def __init__(self, path: Path | None, seeds: range, operations: int = 0) -> None:
        self._path = path
        self._run = {"sources": _fingerprint(), "operations": operations, "first": seeds.start}
        self.tally = Tally()
        if path is not None and path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["run"] == self._run and kept["sums"]["seeds"] <= len(seeds):
                self.tally = Tally.decode(kept)
        #: Those that have not run.
        self.rest = seeds[self.tally.sums["seeds"] :]

    def write(self) -> None:
        """Keep the sums as they are."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(f"{self._path.name}.new")
        new.write_text(
            json.dumps({"run": self._run} | self.tally.encode(), indent=1) + "\n", "utf-8"
        )
        new.replace(self._path)


def _fingerprint() -> str:
    root = Path(quorumbook.__file__).parent
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _table(what: str, counts: dict[str, int] | Counter[str]) -> list[str]:
    rows = [f"| {name.replace('_', ' ')} | {counts[name]:,} |" for name in counts]
    return [f"| {what} | count |", "|---|---|", *rows, ""]


def _planted_bugs(report: Path) -> list[str]:
    """Return in two lines what the search for planted bugs found; its own page has each."""
    findings = json.loads(report.read_text(encoding="utf-8"))
    found = [each for each in findings if each["seed"] is not None]
    return [
        f"Of {len(findings)} bugs that were planted in the product, one at a time, seeds found "
        f"{len(found)}: [each of them]({report.stem}.md), and which scenarios of the track record "
        "they bring back.",
        "",
    ]
