"""What many seeds did, in numbers: printed, kept from run to run, and a page for docs/reports."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import quorumbook
from quorumbook.sim.life import Outcome
from quorumbook.sim.search.sometimes import STATES

#: What stands below this heading of a page was written by people and stays.
_BY_PEOPLE = "## Found and mended"


@dataclass(frozen=True, slots=True)
class Counts:
    """One seed in numbers."""

    seed: int
    phase: str
    #: The first broken promise, in one line.
    violation: str
    ledgers: int
    operations: int
    audited: int
    acknowledged: int
    records: int
    events: int
    mishaps: Mapping[str, int]
    sightings: Mapping[str, int]
    virtual_s: float
    processor_s: float

    @classmethod
    def of(cls, outcome: Outcome) -> Counts:
        """Return those of an outcome."""
        return cls(
            outcome.seed,
            outcome.phase,
            outcome.violations[0].partition("\n")[0] if outcome.violations else "",
            outcome.ledgers,
            outcome.operations,
            outcome.audited,
            outcome.acknowledged,
            outcome.records,
            outcome.events,
            dict(outcome.mishaps),
            dict(outcome.sightings),
            outcome.virtual_s,
            outcome.processor_s,
        )


class Kept:
    """A file with the counts of the seeds that ran, so that a long run can go on where it ended.

    Seeds of other sources, or of another length, are other runs: their counts are forgotten.

    Args:
        path: The file; it is made if it is not there.
        operations: How many each seed has, 0 if as many as it says.
    """

    def __init__(self, path: Path, operations: int = 0) -> None:
        self._path = path
        self.counts: list[Counts] = []
        head = json.dumps({"sources": _fingerprint(), "operations": operations})
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        if lines[:1] == [head]:
            # A run that was killed may have left half a line.
            self.counts = [Counts(**json.loads(line)) for line in lines[1:] if line[-1:] == "}"]
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [head, *(json.dumps(asdict(each)) for each in self.counts)]
        path.write_text("\n".join(kept) + "\n", encoding="utf-8")

    def add(self, counts: Counts) -> None:
        """Keep those of one more seed."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(counts)) + "\n")


def _fingerprint() -> str:
    root = Path(quorumbook.__file__).parent
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


class Tally:
    """The sums of many seeds."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.mishaps: Counter[str] = Counter()
        self.phases: Counter[str] = Counter()
        self.sightings: Counter[str] = Counter()
        self.violations: dict[int, str] = {}
        self.virtual_s = 0.0
        self.processor_s = 0.0

    def add(self, counts: Counts) -> None:
        """Count a seed."""
        self.sums["seeds"] += 1
        self.sums["seeds that broke a promise"] += bool(counts.violation)
        self.sums["ledgers"] += counts.ledgers
        self.sums["answers to clients"] += counts.operations
        self.sums["copies of entries looked at on bookies"] += counts.audited
        self.sums["acknowledged entries"] += counts.acknowledged
        self.sums["acknowledged records"] += counts.records
        self.sums["events"] += counts.events
        self.mishaps.update(counts.mishaps)
        self.phases[counts.phase or "none"] += 1
        self.sightings.update(counts.sightings)
        self.virtual_s += counts.virtual_s
        self.processor_s += counts.processor_s
        if counts.violation:
            self.violations[counts.seed] = counts.violation

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
