"""``python -m security.limits.run``: run attacks, print what came of each, and write the page."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from pathlib import Path

from security.limits.attacks import ATTACKS
from security.limits.measure import MB, MEMORY_BYTES_MAX, Outcome, measure

_STALL_S = 0.05
_FACTOR = 3


def misses(one: Outcome) -> list[str]:
    """Return which goals an attack's outcome misses."""
    found = []
    if one.has_ended:
        found.append("exit")
    if one.peak_bytes > MEMORY_BYTES_MAX:
        found.append("memory")
    if one.stall_s > _STALL_S:
        found.append("stall")
    if one.attacked_ms[1] > _FACTOR * max(one.quiet_ms[1], (one.control_ms or (0, 0))[1]):
        found.append("p99")
    return found


def row(one: Outcome) -> str:
    p50, p99 = one.quiet_ms
    attacked50, attacked99 = one.attacked_ms
    control = f"{one.control_ms[0]:.1f} / {one.control_ms[1]:.1f}" if one.control_ms else "-"
    return (
        f"| {one.attack}: {ATTACKS[one.attack].what} | {one.by} | {one.sent_bytes / 1e6:.3g} MB "
        f"| {one.before_bytes // MB} | {one.peak_bytes // MB} "
        f"| {one.stall_s * 1000:.0f} ({one.wall_stall_s * 1000:.0f}) | {p50:.1f} / {p99:.1f} "
        f"| {control} | {attacked50:.1f} / {attacked99:.1f} "
        f"| {', '.join(misses(one)) or 'all kept'} |"
    )


HEAD = """\
| attack | by | sent | MB before | MB at the peak | longest stall, ms (by the wall) \
| writer p50 / p99 quiet, ms | control, ms | under attack, ms | goals missed |
|---|---|---|---|---|---|---|---|---|---|"""


def page(outcomes: list[Outcome], seconds: float) -> str:
    rows = "\n".join(map(row, outcomes))
    return f"""\
# Limits

`make limits` on {platform.system()} {platform.release()}, Python {platform.python_version()}: \
each attack runs for {seconds:g} s against a bookie of its own with default options, a real process,
beside a writer that appends 1 KB every 10 ms.

The goals: at most {MEMORY_BYTES_MAX // MB} MB (the caches and 400 MB), no stall of the event loop \
over {_STALL_S * 1000:.0f} ms, the writer's p99 at most {_FACTOR} times its quiet value, no exit.
A stall is processor time of the loop's thread between two looks at the clock; the time by the wall
includes what attacker, writer and the rest of the machine took meanwhile.
A stranger has no password where one is needed; a client may do everything; a reader reads nothing.
Attacker, writer and bookie share this machine's {os.cpu_count()} processors, so part of what the \
writer notices is the machine.
The control says how much: its latency while another bookie of the machine is attacked in the same
way.
The quiet value in the goal is the larger one of both.
What they did before a bookie weighed what they cause is in [limits-before.md](limits-before.md),
and an hour of `mixed` in [limits-hour.md](limits-hour.md).

{HEAD}
{rows}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="attacks, separated by commas")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--no-control", action="store_true", help="half the time")
    arguments = parser.parse_args()
    print(HEAD, flush=True)
    outcomes = []
    for name in [one for one in arguments.only.split(",") if one] or ATTACKS:
        outcomes.append(
            asyncio.run(measure(name, arguments.seconds, has_control=not arguments.no_control))
        )
        print(row(outcomes[-1]), flush=True)
    if arguments.report:
        arguments.report.write_text(page(outcomes, arguments.seconds))
    return any(misses(one) for one in outcomes)


if __name__ == "__main__":
    sys.exit(main())
