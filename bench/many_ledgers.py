"""Measure many ledgers alone: 20,000 written in turn against 100, and 100,000 open ones.

    python bench/many_ledgers.py [--rounds 3] [--ledgers 100000]

The same figures are in ``make bench``, one round each.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from endurance import OPEN_LEDGERS, many_ledgers, open_ledgers
from report import machine
from systems import Own


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ledgers", type=int, default=OPEN_LEDGERS, help="how many are open")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="quorumbook-bench-"))
    own = Own(work)
    own.start({})
    try:
        print("\n".join(machine()))
        for _ in range(arguments.rounds):
            print(many_ledgers(own), flush=True)
        print(open_ledgers(own, arguments.ledgers))
    finally:
        own.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
