"""What all jobs are made of: units of work, results, reports, exit codes.

A job fails in single units and goes on with the others; a unit that failed is an error in the
report, and is done again when the job is resumed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.pool import ClusterClient

#: As a command's exit codes are.
CLEAN, FAILED, FOUND = 0, 1, 6

#: Of JSON's kinds only.
Values = Mapping[str, Any]
#: Does one unit on an executor; a function of a module, so that only its name travels.
Work = Callable[[ClusterClient, Pace, Values], Awaitable[Values]]


@dataclass(frozen=True, slots=True)
class Unit:
    """Something that is done in one go, by one task."""

    #: The same whenever the same job is planned again; what is done is known by it.
    key: str
    #: About how much is read for it.
    size_bytes: int
    arguments: Values


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job, ready to run."""

    job: str
    units: Sequence[Unit]
    work: Work
    #: Tells of a unit's result whether it holds findings.
    has_findings: Callable[[Values], bool] = lambda result: False
    #: After such a result nothing more is begun.
    stops_at_findings: bool = False
    #: What is planned is never done yet, as the plan follows what the cluster is like now.
    is_all_left: bool = False


@dataclass(slots=True)
class Report:
    """What a job came to."""

    job: str
    job_id: str
    is_dry_run: bool = False
    #: Of a dry run: the first units that would be done.
    planned: list[str] = field(default_factory=list)
    units: int = 0
    size_bytes: int = 0
    #: Of units that were done before this run.
    resumed: int = 0
    began_s: float = field(default_factory=time.monotonic)
    results: dict[str, Values] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    #: What the job itself makes of its results.
    summary: dict[str, Any] = field(default_factory=dict)
    findings: int = 0

    def find_done(self, done: Mapping[str, Values]) -> None:
        """Take over what an earlier run did."""
        self.results = dict(done)
        self.resumed = len(done)

    def add(self, results: Mapping[str, Values], errors: Mapping[str, str] | None = None) -> None:
        """Take in what came of some units."""
        self.results.update(results)
        self.errors.update(errors or {})

    def do(self, unit: str, result: Values, size_bytes: int) -> None:
        """Take in one more unit with what came of it."""
        self.units += 1
        self.size_bytes += size_bytes
        self.results[unit] = result

    def add_batch(self, batch: Report) -> None:
        """Take in the report of a batch, but for its results."""
        self.units += batch.units
        self.resumed += batch.resumed
        self.size_bytes += batch.size_bytes
        self.add({key: {} for key in batch.results}, batch.errors)

    def judge(self, has_findings: Callable[[Values], bool]) -> None:
        """Count the results that have findings."""
        self.findings = sum(map(has_findings, self.results.values()))

    def plan(self, unit: str, size_bytes: int = 0) -> None:
        """Name one more unit that a dry run would do."""
        self.planned.append(unit)
        self.units += 1
        self.size_bytes += size_bytes

    @property
    def exit_code(self) -> int:
        """0: clean; 1: something could not be done; 6: all was done, and something was found."""
        if self.errors:
            return FAILED
        return FOUND if self.findings else CLEAN

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json-report`` writes."""
        return {
            "job": self.job,
            "job_id": self.job_id,
            "dry_run": self.is_dry_run,
            **({"planned": self.planned} if self.is_dry_run else {}),
            "units": self.units,
            "done": len(self.results),
            "resumed": self.resumed,
            "planned_bytes": self.size_bytes,
            "seconds": round(time.monotonic() - self.began_s, 3),
            "findings": self.findings,
            "errors": self.errors,
            "exit_code": self.exit_code,
            **self.summary,
        }
