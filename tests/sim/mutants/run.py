"""Plant each bug in turn and run seeds until one of them breaks a promise.

    python -m sim.mutants.run --seeds 0..299 --jobs 2 --report mutants.json

Prints after how many seeds each bug was found: all in the directed phase that is named with the
bug, or seeds as they come, with ``--as-they-come``, of which half have no phase and the others one
of many.  A bug that no seed finds is one that the runs are too weak for; the test that finds it is
named with it (``planting.py``).

With ``--report`` what was found before stays there for the bugs that were not looked for, and what
was found in the other way.  ``--untried`` looks for those only of which it says nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from quorumbook.sim.life import Variation, run_seed
from sim.mutants.page import page
from sim.mutants.planting import Mutant, all_mutants, planted

#: A planted bug may make a seed go on for ever.
_SEED_LIMIT_S = 300
#: The phase of a bug that seeds without one find.
NO_PHASE = "none"
#: Exceptions that come of a badly planted bug, not of what it does.
_BADLY_PLANTED = ("NameError", "UnboundLocalError", "SyntaxError")


@dataclass(frozen=True)
class Finding:
    """What became of one bug."""

    what: str
    area: str
    #: The seed that found it; None if none did.
    seed: int | None
    tried: int
    processor_s: float
    violation: str = ""
    #: The directed phase that every seed had; "" if they were as they come.
    phase: str = ""
    #: The test that finds it.
    test: str = ""


class SeedHangsError(Exception):
    """A seed does not end."""


def _hangs(number: int, frame: FrameType | None) -> None:
    raise SeedHangsError


def search(mutant: Mutant, seeds: Sequence[int], phase: str = "") -> Finding:
    """Run seeds with the bug until one finds it.

    Args:
        mutant: The bug.
        seeds: Which, in their order.
        phase: The directed phase of each; ``NO_PHASE`` is none, "" is as they come.
    """
    began = time.process_time()
    variation = Variation(phase={"": None, NO_PHASE: ""}.get(phase, phase))
    signal.signal(signal.SIGALRM, _hangs)
    with planted(mutant):
        for tried, seed in enumerate(seeds, start=1):
            signal.alarm(_SEED_LIMIT_S)
            try:
                violations = run_seed(seed, variation=variation).violations
            except SeedHangsError:
                violations = ("a seed does not end",)
            finally:
                signal.alarm(0)
            if violations:
                first = violations[0].partition("\n")[0]
                if any(name in first for name in _BADLY_PLANTED):
                    raise ValueError(f"{mutant.what}: {first}")
                took_s = time.process_time() - began
                return Finding(
                    mutant.what, mutant.area, seed, tried, took_s, first, phase, mutant.test
                )
    took_s = time.process_time() - began
    return Finding(mutant.what, mutant.area, None, len(seeds), took_s, "", phase, mutant.test)


def _search(job: tuple[Mutant, Sequence[int], bool]) -> Finding:
    mutant, seeds, is_as_they_come = job
    return search(mutant, seeds, "" if is_as_they_come else mutant.phase)


def findings_of(
    mutants: Sequence[Mutant],
    seeds: Sequence[int],
    jobs: int,
    report: Path | None,
    *,
    is_as_they_come: bool = False,
) -> list[Finding]:
    """Search for all of them, in so many processes."""
    found: list[Finding] = []
    jobs_of = [(each, seeds, is_as_they_come) for each in mutants]
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        for finding in pool.imap_unordered(_search, jobs_of):
            found.append(finding)
            where = "not found" if finding.seed is None else f"seed {finding.seed}"
            print(
                f"{where:>10} ({finding.tried} tried, {finding.processor_s:.0f} s) "
                f"{finding.area}: {finding.what}: {finding.violation[:100]}",
                flush=True,
            )
            if report is not None:
                write_report(report, finding, is_as_they_come=is_as_they_come)
    return found


def write_report(path: Path, finding: Finding, *, is_as_they_come: bool) -> None:
    """Write what was found, beside what is there of other bugs, as JSON and as a page."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    by_words: dict[str, dict[str, Any]] = {each["what"]: each for each in rows}
    row = by_words.setdefault(finding.what, {"seed": None, "tried": 0})
    if is_as_they_come:
        row["as_they_come"] = {"seed": finding.seed, "tried": finding.tried}
    else:
        row |= asdict(finding)
    kept = [
        {**by_words[each.what], "what": each.what, "area": each.area, "test": each.test,
         "scenarios": [*each.scenarios]}
        for each in all_mutants()
        if each.what in by_words
    ]  # fmt: skip
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(kept), encoding="utf-8")


def tried(report: Path | None, *, is_as_they_come: bool) -> set[str]:
    """Return the words of the bugs of which a report tells what this way of search found."""
    if report is None or not report.is_file():
        return set()
    key = "as_they_come" if is_as_they_come else "phase"
    rows = json.loads(report.read_text(encoding="utf-8"))
    return {each["what"] for each in rows if key in each}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", default="0..299", metavar="A..B")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of their words or area")
    parser.add_argument("--as-they-come", action="store_true", help="seeds without their phase")
    parser.add_argument("--untried", action="store_true", help="of which the report says nothing")
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    done = tried(options.report, is_as_they_come=options.as_they_come) if options.untried else ()
    mutants = [
        each
        for each in all_mutants()
        if options.only in f"{each.area}: {each.what}" and each.what not in done
    ]
    problems = [each.problem for each in mutants if each.problem]
    if problems or not mutants:
        print("\n".join(problems) or "no such bug", file=sys.stderr)
        return 1
    findings = findings_of(
        mutants, range(int(first), int(last) + 1), options.jobs, options.report,
        is_as_they_come=options.as_they_come,
    )  # fmt: skip
    killed = sum(each.seed is not None for each in findings)
    print(f"{killed} of {len(findings)} found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
