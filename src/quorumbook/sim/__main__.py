"""The command: run seeds, or one seed again.

    python -m quorumbook.sim run --seeds 0..999 --jobs 2
    python -m quorumbook.sim replay 17 --trace

``run`` prints each seed that breaks a promise, with the story of the ledger, and ends with exit
code 1 if there is one.  Every hundredth seed is run twice: the same seed must be the same run.
``replay`` runs a seed twice and prints its hash, and with ``--trace`` everything that happened.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from quorumbook.sim.life import Outcome, run_seed
from quorumbook.sim.runs import be_quiet, outcomes_of


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m quorumbook.sim",
        description="A whole cluster in one process, on virtual time, from one seed.",
        epilog="example: python -m quorumbook.sim run --seeds 0..99",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run seeds and report broken promises")
    run.add_argument("--seeds", type=_seeds, required=True, metavar="A..B", help="both included")
    run.add_argument("--jobs", type=int, default=1, help="processes")
    replay = commands.add_parser("replay", help="run one seed twice and compare")
    replay.add_argument("seed", type=int)
    replay.add_argument("--trace", action="store_true", help="print all that happened")
    arguments = parser.parse_args(words)
    be_quiet()
    if arguments.command == "run":
        return _run(arguments.seeds, arguments.jobs)
    return _replay(arguments.seed, with_trace=arguments.trace)


def _seeds(text: str) -> range:
    first, separator, last = text.partition("..")
    if not separator or not first.isdigit() or not last.isdigit() or int(last) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds, such as 0..99")
    return range(int(first), int(last) + 1)


def _run(seeds: range, jobs: int) -> int:
    began = time.perf_counter()
    with outcomes_of(seeds, jobs) as outcomes:
        return 1 if _report(outcomes, began) else 0


def _report(outcomes: Iterable[Outcome], began: float) -> int:
    """Print what is wrong, then the sums; return how many seeds broke a promise."""
    sums: Counter[str] = Counter()
    mishaps: Counter[str] = Counter()
    virtual_s = 0.0
    for outcome in outcomes:
        sums["seeds"] += 1
        sums["ledgers"] += outcome.ledgers
        sums["acknowledged entries"] += outcome.acknowledged
        sums["acknowledged records"] += outcome.records
        sums["events"] += outcome.events
        mishaps.update(outcome.mishaps)
        virtual_s += outcome.virtual_s
        if outcome.violations:
            sums["broken"] += 1
            print(f"seed {outcome.seed} breaks a promise: {outcome.violations[0]}")
            print(f"  again: python -m quorumbook.sim replay {outcome.seed} --trace", flush=True)
    took_s = time.perf_counter() - began
    print(f"{virtual_s / 3600:.2f} virtual hours, {sums['seeds'] / took_s:.1f} seeds/s")
    for name in (
        "seeds",
        "broken",
        "ledgers",
        "acknowledged entries",
        "acknowledged records",
        "events",
    ):
        print(f"{sums[name]:10d} {name}")
    for name, count in sorted(mishaps.items()):
        print(f"{count:10d} {name}")
    return sums["broken"]


def _replay(seed: int, *, with_trace: bool) -> int:
    first, second = run_seed(seed, keep_trace=True), run_seed(seed, keep_trace=True)
    if with_trace:
        print("\n".join(first.trace))
    for violation in first.violations:
        print(f"seed {seed} breaks a promise: {violation}")
    print(f"seed {seed}: {first.trace_hash}, {first.events} events, {first.plan}")
    if first.trace_hash != second.trace_hash:
        pairs = zip(first.trace, second.trace, strict=False)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
        print("the second run differs:", *differing, sep="\n")
        return 1
    return 1 if first.violations else 0


if __name__ == "__main__":
    sys.exit(main())
