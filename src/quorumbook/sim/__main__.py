"""The command: run seeds, one seed again, or make its story short.

    python -m quorumbook.sim run --seeds 0..999 --jobs 2 --report docs/reports/simulation.md
    python -m quorumbook.sim replay 17 --trace
    python -m quorumbook.sim shrink 17 --to tests/sim/corpus/late-ack.json

With ``--operations N`` mishaps end when clients were told N things, or after N/25 virtual seconds
if the seed's directed phase has no length of its own: many short lives in the time of a long one.
``run`` prints each seed that breaks a promise, and ends with exit code 1 if there is one.  Every
hundredth seed is run twice: the same seed must be the same run.  With ``--keep`` a run that ended
early goes on with the seeds that are left.
``replay`` runs a seed, or a file of the corpus, twice and prints its hash, and with ``--trace``
everything that happened.  ``shrink`` looks for a shorter run that breaks the same promise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from quorumbook.sim.life import Variation, of_operations
from quorumbook.sim.runs import outcomes_of
from quorumbook.sim.search.report import Kept, Tally
from quorumbook.sim.search.shrinking import Case, Shrinker

_KEEP_EVERY = 100


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(words)
    if arguments.command == "run":
        return _run(arguments)
    case = arguments.seed
    case = replace(case, plan={**_variation(arguments).plan, **case.plan})
    if arguments.command == "shrink":
        return _shrink(case, arguments.runs, arguments.to)
    return _replay(case, with_trace=arguments.trace)


def _variation(arguments: argparse.Namespace) -> Variation:
    return of_operations(arguments.operations) if arguments.operations else Variation()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m quorumbook.sim",
        description="A whole cluster in one process, on virtual time, from one seed.",
        epilog="example: python -m quorumbook.sim run --seeds 0..99",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run seeds and report broken promises")
    run.add_argument("--seeds", type=_seeds, required=True, metavar="A..B", help="both included")
    run.add_argument("--jobs", type=int, default=1, help="processes")
    run.add_argument("--keep", type=Path, help="a file of sums, to go on after an end")
    run.add_argument("--report", type=Path, help="write a page with the sums")
    run.add_argument("--mutants", type=Path, help="what a search for planted bugs wrote")
    replay = commands.add_parser("replay", help="run one seed twice and compare")
    replay.add_argument("seed", type=_case, help="a seed, or a file of the corpus")
    replay.add_argument("--trace", action="store_true", help="print all that happened")
    shrink = commands.add_parser("shrink", help="make the story of a seed short")
    shrink.add_argument("seed", type=_case, help="a seed, or a file of the corpus")
    shrink.add_argument("--runs", type=int, default=200, help="how many runs it may take")
    shrink.add_argument("--to", type=Path, help="keep what is left here")
    for each in (run, replay, shrink):
        each.add_argument("--operations", type=int, default=0, metavar="N", help="short lives")
    return parser


def _seeds(text: str) -> range:
    first, separator, last = text.partition("..")
    if not separator or not first.isdigit() or not last.isdigit() or int(last) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds, such as 0..99")
    return range(int(first), int(last) + 1)


def _case(text: str) -> Case:
    if text.isdigit():
        return Case(int(text))
    try:
        return Case.decode(Path(text).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no seed, and no case: {error}") from error


def _run(arguments: argparse.Namespace) -> int:
    kept = Kept(arguments.keep, arguments.seeds, arguments.operations)
    tally = kept.tally
    try:
        with outcomes_of(kept.rest, arguments.jobs, _variation(arguments)) as outcomes:
            for outcome in outcomes:
                tally.add(outcome)
                if outcome.seed in tally.violations:
                    _tell(outcome.seed, tally.violations[outcome.seed], arguments.operations)
                if tally.sums["seeds"] % _KEEP_EVERY == 0:
                    kept.write()
                    ran = f"{tally.sums['seeds']} of {len(arguments.seeds)} seeds"
                    print(ran, file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("ended early; the same command goes on with --keep", file=sys.stderr)
    kept.write()
    print("\n".join(tally.lines()))
    if arguments.report is not None:
        _write_page(arguments, tally)
    return 1 if tally.violations or tally.sums["seeds"] < len(arguments.seeds) else 0


def _tell(seed: int, violation: str, operations: int) -> None:
    which = f"{seed} --operations {operations}" if operations else f"{seed}"
    print(f"seed {seed} breaks a promise: {violation}")
    print(f"  again: python -m quorumbook.sim replay {which} --trace")
    print(f"  shorter: python -m quorumbook.sim shrink {which}", flush=True)


def _write_page(arguments: argparse.Namespace, tally: Tally) -> None:
    path = arguments.report
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    page = tally.page(arguments.seeds, arguments.operations, arguments.mutants, before)
    path.write_text(page, encoding="utf-8")


def _shrink(case: Case, runs: int, to: Path | None) -> int:
    try:
        shrinker = Shrinker(case, runs=runs, tell=print)
    except ValueError as error:
        print(error)
        return 1
    shorter = shrinker.shrink()
    outcome, _ = shorter.run(keep_trace=True)
    print(outcome.violations[0])
    print(shorter.encode())
    if to is not None:
        to.write_text(shorter.encode() + "\n", encoding="utf-8")
    return 0


def _replay(case: Case, *, with_trace: bool) -> int:
    (first, _), (second, _) = case.run(keep_trace=True), case.run(keep_trace=True)
    if with_trace:
        print("\n".join(first.trace))
    for violation in first.violations:
        print(f"seed {case.seed} breaks a promise: {violation}")
    print(f"seed {case.seed}: {first.trace_hash}, {first.events} events, {first.plan}")
    if first.trace_hash != second.trace_hash:
        pairs = zip(first.trace, second.trace, strict=False)
        differing = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
        print("the second run differs:", *differing, sep="\n")
        return 1
    return 1 if first.violations else 0


if __name__ == "__main__":
    sys.exit(main())
