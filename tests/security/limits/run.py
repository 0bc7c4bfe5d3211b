"""``python -m security.limits.run``: run attacks, print what came of each, and write the page.

The page is written again after each attack, so what was measured is there whatever comes later; an
attack that fails, or does not end, has a row that says so.  ``--hour`` is the mixed attack alone,
with its memory in the course of time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
from pathlib import Path

from quorumbook.env.machine import raise_descriptor_limit
from security.limits.attacks import ATTACKS
from security.limits.measure import CONTROL_S, MB, MEMORY_BYTES_MAX, Outcome, measure, p50_p99

_BEFORE = Path(__file__).parents[3] / "docs" / "reports" / "limits-before.md"
_BEFORE_CELLS = 9
_STALL_S = 0.05
_FACTOR = 3
_SECONDS = 8.0
#: Its crowd of connections takes some seconds to come.
_MIXED_SECONDS = 40.0
_HOUR_S = 3600.0
#: Of 800 appends in one, eight decide on the 99th percentile.
_ROUNDS = 3
#: Beside the attack and its control: to start, to prepare, and what a busy machine makes of it.
_PATIENCE_S = 120.0
#: Lines of the hour's picture.
_PICTURE_LINES = 20


def misses(one: Outcome) -> list[str]:
    """Return which goals an attack's outcome misses."""
    found = []
    if one.has_ended:
        found.append("exit")
    if one.peak_bytes > MEMORY_BYTES_MAX:
        found.append("memory")
    if one.stall_s > _STALL_S:
        found.append("stall")
    if p50_p99(one.attacked_ms)[1] > allowed_ms(one):
        found.append("p99")
    return found


def allowed_ms(one: Outcome) -> float:
    """Return the largest p99 that keeps the goal."""
    return _FACTOR * max(p50_p99(took)[1] for took in (one.quiet_ms, one.control_ms) if took)


def before(name: str) -> str:
    """Return what an attack did before: memory in MB, stall and the writer's p99 in ms."""
    for line in _BEFORE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > _BEFORE_CELLS and cells[1].partition(":")[0] == name:
            peak, stall, attacked = cells[5], cells[6].partition(" ")[0], cells[8]
            return f"{peak}, {stall}, {attacked.partition('/')[2].strip()}"
    return "-"


def row(name: str, one: Outcome | str) -> str:
    """Return an attack's line of the table; of one that failed, with the reason."""
    if isinstance(one, str):
        return f"| {name}: {ATTACKS[name].what} | {ATTACKS[name].by} |{' - |' * 8} not run: {one} |"
    quiet, control, attacked = map(_shown, (one.quiet_ms, one.control_ms, one.attacked_ms))
    return (
        f"| {name}: {ATTACKS[name].what} | {one.by} | {one.sent_bytes / 1e6:.3g} MB "
        f"| {one.before_bytes // MB} | {one.peak_bytes // MB} "
        f"| {one.stall_s * 1000:.0f} ({one.wall_stall_s * 1000:.0f}) | {quiet} "
        f"| {control} | {attacked} | {before(name)} | {', '.join(misses(one)) or 'all kept'} |"
    )


def _shown(took_ms: list[float]) -> str:
    return "{:.1f} / {:.1f}".format(*p50_p99(took_ms)) if took_ms else "-"


HEAD = """\
| attack | by | sent | MB before | MB at the peak | longest stall, ms (by the wall) \
| writer p50 / p99 quiet, ms | control, ms | under attack, ms | before, as MB, stall, p99 \
| goals missed |
|---|---|---|---|---|---|---|---|---|---|---|"""


def page(
    outcomes: dict[str, Outcome | str], seconds: float, mixed_seconds: float, rounds: int
) -> str:
    """Return the page of the table."""
    rows = "\n".join(row(name, one) for name, one in outcomes.items())
    return f"""\
# Limits

`make limits` on {platform.system()} {platform.release()}, Python {platform.python_version()}: \
each attack runs for {seconds:g} s against a bookie of its own with default options, a real process,
beside a writer that appends 1 KB every 10 ms.
`mixed` runs for {mixed_seconds:g} s, as its crowd of connections takes some seconds to come.
It has all but those that need a bookie with a password or TLS, and `leaving`: a busy loop hears of
thousands of connections that ended in one go, 20 us each.
Each is carried out {rounds} times: a row has the most memory and the longest stall of any, and
percentiles of all appends together.

The goals: at most {MEMORY_BYTES_MAX // MB} MB (the caches and 400 MB), no stall of the event loop \
over {_STALL_S * 1000:.0f} ms, the writer's p99 at most {_FACTOR} times its quiet value, no exit.
A stall is processor time of the loop's thread between two looks at the clock; the time by the wall
includes what attacker, writer and the rest of the machine took meanwhile.
A stranger has no password where one is needed; a client may do everything; a reader reads nothing.
Where a process may have fewer than 20,000 descriptors the crowds are smaller in proportion; here \
it may have {raise_descriptor_limit():,}.
Watches in the metadata store have no row: no room that carries requests out knows the metadata, \
which the import rules see to.
Attacker, writer and bookie share this machine's {os.cpu_count()} processors, so part of what the \
writer notices is the machine.
The control says how much: its latency while another bookie of the machine is attacked in the same
way.
The quiet value in the goal is the larger one of both.
The last column but one has what they did before a bookie weighed what they cause, on a busier
machine, to 2,000 connections at most: memory at the peak, the longest stall and the writer's p99
([limits-before.md](limits-before.md)); an hour of `mixed` in [limits-hour.md](limits-hour.md).

{HEAD}
{rows}
"""


def hour_page(one: Outcome, seconds: float) -> str:
    """Return the page of the long attack."""
    quiet, control, attacked = (
        p50_p99(took)[1] for took in (one.quiet_ms, one.control_ms or one.quiet_ms, one.attacked_ms)
    )
    missed = misses(one)

    def shown(name: str, text: str) -> str:
        return f"**{text}, missed**" if name in missed else text

    return f"""\
# An hour of the mixed attack

`make limits-hour` on {platform.system()} {platform.release()}, \
Python {platform.python_version()}: for {seconds / 60:.0f} minutes, against a bookie with default \
options, everything that a client can do, at a quarter of its size, again and again, amid 10,000 \
connections.
What the attacks are, and how each does alone, is in [limits.md](limits.md).

| | goal | seen |
|---|---|---|
| resident memory at the peak | {MEMORY_BYTES_MAX // MB} MB: the caches and 400 MB \
| {shown("memory", f"{one.peak_bytes // MB} MB")} |
| longest stall of the loop, its own processor time | {_STALL_S * 1000:.0f} ms \
| {shown("stall", f"{one.stall_s * 1000:.0f} ms")} |
| the writer's p99 | {_FACTOR} times the larger of quiet ({quiet:.1f} ms) and control \
({control:.1f} ms): {allowed_ms(one):.0f} ms | {shown("p99", f"{attacked:.0f} ms")} |
| exits | none | {shown("exit", "one" if one.has_ended else "none")}; the writer appended \
{one.appended:,} entries |

{one.sent_bytes / 1e9:.1f} GB were sent, {one.sent_bytes / 1e6 / seconds:.0f} MB a second.

The most resident memory seen, in MB; looked at once a second:

{picture(one.minutes_bytes)}
"""


def picture(minutes_bytes: list[int]) -> str:
    """Draw memory in the course of time."""
    step = max(1, -(-len(minutes_bytes) // _PICTURE_LINES))
    lines = ["```", "minutes     MB"]
    for start in range(0, len(minutes_bytes), step):
        most = max(minutes_bytes[start : start + step]) // MB
        lines.append(f"{start:3} to {start + step:3} {most:5}  {'#' * (most // 10)}")
    return "\n".join([*lines, "```"])


def write(report: Path | None, text: str) -> None:
    """Write the page; what somebody wrote below it, from a heading on, stays."""
    if report is None:
        return
    before = report.read_text() if report.exists() else ""
    _, heading, rest = before.partition("\n## ")
    report.write_text(text + heading + rest)


def run(name: str, seconds: float, *, has_control: bool) -> Outcome | str:
    """Carry an attack out; return what went wrong if that was the measurement itself."""
    limit_s = seconds + (min(seconds, CONTROL_S) if has_control else 0) + _PATIENCE_S

    async def limited() -> Outcome:
        async with asyncio.timeout(limit_s):
            return await measure(name, seconds, has_control=has_control)

    try:
        return asyncio.run(limited())
    except Exception as error:
        return f"{type(error).__name__} {error}".strip().replace("|", "/").replace("\n", " ")


def run_rounds(name: str, seconds: float, rounds: int, *, has_control: bool) -> Outcome | str:
    """Carry an attack out some times, and return what it came to in all."""
    whole = run(name, seconds, has_control=has_control)
    for _ in range(1, rounds):
        one = run(name, seconds, has_control=has_control)
        if isinstance(whole, str) or isinstance(one, str):
            return whole if isinstance(whole, str) else one
        whole = whole.with_round(one)
    return whole


def main() -> int:
    """Run what the command line asks for; 1 if a goal was missed, or an attack not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="attacks, separated by commas")
    parser.add_argument("--seconds", type=float, help="of each; 8, and 3600 with --hour")
    parser.add_argument("--mixed-seconds", type=float, default=_MIXED_SECONDS)
    parser.add_argument("--hour", action="store_true", help="the mixed attack for --seconds")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="of each attack")
    parser.add_argument("--no-control", action="store_true", help="half the time")
    arguments = parser.parse_args()
    has_control = not arguments.no_control
    print(HEAD, flush=True)
    if arguments.hour:
        seconds = arguments.seconds or _HOUR_S
        one = run("mixed", seconds, has_control=has_control)
        print(row("mixed", one), flush=True)
        if isinstance(one, str):
            return 1
        write(arguments.report, hour_page(one, seconds))
        return bool(misses(one))
    each = arguments.seconds or _SECONDS
    outcomes: dict[str, Outcome | str] = {}
    for name in [one for one in arguments.only.split(",") if one] or ATTACKS:
        seconds = arguments.mixed_seconds if name == "mixed" else each
        outcomes[name] = run_rounds(name, seconds, arguments.rounds, has_control=has_control)
        print(row(name, outcomes[name]), flush=True)
        text = page(outcomes, each, arguments.mixed_seconds, arguments.rounds)
        write(arguments.report, text)
    return any(isinstance(one, str) or misses(one) for one in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
