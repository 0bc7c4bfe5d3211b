"""Torture a cluster of real processes, and judge everything they were told.

    PYTHONPATH=tests python tests/faults/kill_cycles.py --cycles 1000 --data-dir DIR \\
        --report docs/reports/torture.md

Bookies are killed, one, two and all at once, and paused; writers are killed, paused and resumed
after their ledger is closed, deleted and collected; the network is cut in one direction; requests
to ZooKeeper, its answers and sessions are lost; two rivals recover, create and claim at once; and
auto-recovery runs half of the time.  ``torture/`` says how; the exit code is 1 if a promise broke.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from faults.torture.run import report, run

#: From here on the report is written by people.
BY_HAND = "## Bugs planted"


def _kept(path: Path) -> str:
    """Return what people wrote into the report."""
    _, found, rest = path.read_text().partition(BY_HAND) if path.exists() else ("", "", "")
    return f"\n{found}{rest}" if found else ""


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    outcome = asyncio.run(
        run(given.cycles, given.data_dir, given.seed, lambda line: print(line, flush=True))
    )
    page = report(outcome, given.seed)
    print(page)
    if given.report is not None:
        given.report.write_text(page + _kept(given.report))
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
