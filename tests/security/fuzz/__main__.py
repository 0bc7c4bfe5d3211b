"""Fuzz bookies with many frames, and write down what came of it; see ``run.py``.

    PYTHONPATH=tests python -m security.fuzz --frames 10000000 --report docs/reports/fuzz.md

The seed is printed; with ``--seed S --first N --frames 1`` conversation N comes first again.
The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from security.fuzz.run import DESCRIPTORS_MAX, MEMORY_MAX_MB, MODES, Round, rounds


def _machine() -> str:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{platform.system()} {platform.release()}, {os.cpu_count()} processors, "
        f"{memory_gb:.0f} GB, Python {platform.python_version()}"
    )


def report(done: list[Round], seed: int, seconds: float) -> str:
    """Return the page."""
    frames: Counter[str] = Counter()
    connections: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for each in done:
        frames.update(each.seen["frames"])
        connections.update(each.seen["conversations"])
        answers.update(each.seen["answers"])
    violations = [violation for each in done for violation in each.violations]
    lines = [
        "# Fuzzing",
        "",
        f"`make fuzz` with seed {seed} on {_machine()}, {seconds:.0f} s: {frames.total():,} frames "
        f"on {connections.total():,} connections.",
        "Strangers attacked one bookie in each round while an honest writer wrote to it; then the "
        "bookie was killed with SIGKILL under both, started again, and every acknowledged entry "
        "read back and compared.",
        "",
        "| bookie | rounds | frames | answers judged | entries acknowledged and found again "
        "| most memory | most descriptors | slowest row of 50 appends |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for mode in MODES:
        own = [each for each in done if each.mode == mode]
        if own:
            lines.append(
                f"| {mode} | {len(own)} | {sum(e.frames for e in own):,} "
                f"| {sum(sum(e.seen['answers'].values()) for e in own):,} "
                f"| {sum(e.acknowledged for e in own):,} "
                f"| {max(e.rss_max_mb for e in own)} MB "
                f"| {max(e.descriptors_max for e in own)} "
                f"| {max(e.slowest_ack_ms for e in own):,.0f} ms |"
            )
    lines += [
        "",
        "| what strangers did | connections | frames | answers judged |",
        "|---|---|---|---|",
    ]
    for kind, count in connections.most_common():
        lines.append(f"| {kind} | {count:,} | {frames[kind]:,} | {answers[kind]:,} |")
    lines += [
        "",
        "Broken promises (an entry lost or changed, the writer hindered, an end of the bookie, a "
        "trace in its log, a frame that is not an answer, anything but a refusal or a ledger for a "
        f"stranger at the gate, more than {MEMORY_MAX_MB} MB or {DESCRIPTORS_MAX} descriptors): "
        f"{len(violations)}",
    ]
    return "\n".join([*lines, *(f"- {violation}" for violation in violations), ""])


async def _run(seed: int, first: int, frames: int) -> list[Round]:
    done: list[Round] = []
    sent = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        async for each in rounds(Path(directory), seed, first, frames):
            done.append(each)
            sent += each.frames
            print(
                f"{sent:,} frames; {each.mode}: {each.frames:,} in {each.seconds:.0f} s, "
                f"{each.acknowledged:,} entries acknowledged, {each.rss_max_mb} MB, "
                f"{each.descriptors_max} descriptors, next conversation {each.seen['next']}, "
                f"{len(each.violations)} violations",
                *each.violations,
                sep="\n  ",
                flush=True,
            )
    return done


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--first", type=int, default=0, help="the number of a conversation")
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    # The client's words about a bookie that is killed say nothing new.
    logging.disable(logging.WARNING)
    begun = time.monotonic()
    done = asyncio.run(_run(given.seed, given.first, given.frames))
    page = report(done, given.seed, time.monotonic() - begun)
    print(page)
    if given.report is not None:
        given.report.write_text(page)
    return 1 if any(each.violations for each in done) else 0


if __name__ == "__main__":
    sys.exit(main())
