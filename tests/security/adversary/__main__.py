"""An adversary with imagination, against a bookie and an admin server beside an honest writer.

    python -m security.adversary [--only NAME,...] [--seconds 20] [--seed S] [--report FILE]

The fuzzer knows the grammar and the limits know volume.  Here is what is between them: shapes that
are right piece by piece and wrong as a whole, in time, in order or across the borders of two
protocols.  Each attack goes on for so long.  Then everything the writer was told is read back, the
servers must be there, no log may have a trace or grow without end, and nothing may have been
carried out that was not asked for.  Memory, descriptors and the longest stall of each loop are
watched.

Everything that is sent follows from the seed, and goes to loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from security.adversary import bookie_port, http_ports
from security.adversary.prey import Attack, Prey
from security.fuzz.run import DESCRIPTORS_MAX, MEMORY_MAX_MB, MODES, Honest

AT_ONCE = 24
#: What a connection may write into a log, on average, and what every server may write anyway.
LOG_BYTES_EACH, LOG_BYTES_ANYWAY = 200, 100_000
#: An admin server holds Spark's and the browser's libraries; a stranger adds little to it.
ADMIN_GROWTH_MB = 150
ATTACKS: dict[str, Attack] = {
    each.__name__.replace("_", "-"): each for each in (*bookie_port.ATTACKS, *http_ports.ATTACKS)
}


@dataclass
class Outcome:
    """What one attack came to; ``wrong`` is empty if everything held."""

    attack: str
    mode: str
    rounds: int
    connections: int
    memory_mb: int
    descriptors: int
    stall_ms: float
    admin_stall_ms: float
    wrong: list[str]


async def attacked(
    names: Sequence[str], mode: str, seconds: float, seed: int, directory: Path
) -> Outcome:
    """Attack for so long by all of them, one round at least, and look at what is left."""
    directory.mkdir(parents=True)
    prey = Prey(directory, mode)
    await prey.start()
    honest, is_ready = Honest(prey), asyncio.Event()
    writing = asyncio.create_task(honest.write(is_ready))
    await is_ready.wait()
    async with prey.admin():
        admin_mb = _rss_mb(prey.served.pid)
        prey.forget()
        peaks = [prey.rss_mb(), 0, admin_mb]
        watching = asyncio.create_task(_watch(prey, peaks))
        each = [_rounds(prey, name, seconds, seed) for name in names]
        rounds = sum(await asyncio.gather(*each))
        await asyncio.sleep(0.2)
        watching.cancel()
        stalls = prey.stall_ms("bookie"), prey.stall_ms("admin")
        if prey.served.returncode is not None:
            prey.wrong.append(f"the admin server ended with {prey.served.returncode}")
        if peaks[2] - admin_mb > ADMIN_GROWTH_MB:
            prey.wrong.append(f"the admin server grew from {admin_mb} to {peaks[2]} MB")
    code = await prey.kill()
    await writing
    if code is not None:
        prey.wrong.append(f"the bookie ended with {code}")
    if honest.hindered_by:
        prey.wrong.append(honest.hindered_by)
    await prey.start()
    prey.wrong += await honest.verify()
    await prey.kill()
    _judge_logs(prey)
    if peaks[0] > MEMORY_MAX_MB:
        prey.wrong.append(f"{peaks[0]} MB of memory")
    if peaks[1] > DESCRIPTORS_MAX:
        prey.wrong.append(f"{peaks[1]} descriptors")
    return Outcome(
        ", ".join(names), mode, rounds, prey.connections, peaks[0], peaks[1], *stalls,
        sorted(set(prey.wrong)),
    )  # fmt: skip


async def _rounds(prey: Prey, name: str, seconds: float, seed: int) -> int:
    """Play it by several at a time, each from dice of its own; return how often."""
    began, numbers, done = time.monotonic(), itertools.count(), 0

    async def player() -> None:
        nonlocal done
        while True:
            await ATTACKS[name](prey, random.Random(f"{seed}:{name}:{next(numbers)}"))
            done += 1
            if time.monotonic() - began >= seconds:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE if seconds else 1):
            group.create_task(player())
    return done


async def _watch(prey: Prey, peaks: list[int]) -> None:
    while True:
        now = (prey.rss_mb(), prey.descriptors(), _rss_mb(prey.served.pid))
        peaks[:] = map(max, peaks, now)
        await asyncio.sleep(0.05)


def _rss_mb(pid: int) -> int:
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return 0


def _judge_logs(prey: Prey) -> None:
    for file in (prey.log, prey.directory / "admin.log"):
        text = file.read_text(errors="replace")
        if "Traceback" in text:
            prey.wrong.append(f"{file.name}: {text[text.index('Traceback') :][:2500]}")
        if len(text) > LOG_BYTES_ANYWAY + prey.connections * LOG_BYTES_EACH:
            prey.wrong.append(f"{file.name} has {len(text)} bytes, at its end: {text[-300:]}")


HEAD = """\
| attack | bookie | rounds | connections | memory | descriptors | longest stall of the bookie \
| of the admin server | wrong |
|---|---|---|---|---|---|---|---|---|"""


def row(one: Outcome) -> str:
    """Return a row of the report; some attacks need a gate, or that there is none."""
    if one.connections <= 1:
        return f"| {one.attack} | {one.mode} | does not apply | | | | | | |"
    return (
        f"| {one.attack} | {one.mode} | {one.rounds:,} | {one.connections:,} | {one.memory_mb} MB "
        f"| {one.descriptors} | {one.stall_ms:.0f} ms | {one.admin_stall_ms:.0f} ms "
        f"| {'; '.join(one.wrong) or 'nothing'} |"
    )


def page(outcomes: Sequence[Outcome], seconds: float, seed: int) -> str:
    """Return the report."""
    rows = "\n".join(map(row, outcomes))
    what = "\n".join(
        f"- **{name}**: {str(attack.__doc__).splitlines()[0]}" for name, attack in ATTACKS.items()
    )
    return f"""\
# An adversary with imagination

`make adversary` with seed {seed} on {platform.system()} {platform.release()}, \
{os.cpu_count()} processors, Python {platform.python_version()}: each attack went on for \
{seconds:g} s, {AT_ONCE} at once, against a bookie and an admin server of their own, beside an \
honest writer; {sum(one.connections for one in outcomes):,} connections in all.
Then the bookie was killed with SIGKILL, started again, and every acknowledged entry read back.

"Wrong" would be: an entry that is lost or changed, a writer that is hindered, an end of a server, \
a trace or very many lines in a log, anything but a refusal for a stranger at the gate, something \
carried out that was hidden in a request, more than {MEMORY_MAX_MB} MB or {DESCRIPTORS_MAX} \
descriptors of the bookie, an admin server that grows by {ADMIN_GROWTH_MB} MB.
A stall is processor time of the loop's thread between two looks at the clock.

{HEAD}
{rows}

{what}
"""


async def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(ATTACKS), help="attacks, separated by commas")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}\n{HEAD}", flush=True)
    outcomes = []
    for name, mode in itertools.product(arguments.only.split(","), MODES):
        with tempfile.TemporaryDirectory() as place:
            outcomes.append(
                await attacked(
                    [name], mode, arguments.seconds, arguments.seed, Path(place) / "prey"
                )
            )
        print(row(outcomes[-1]), flush=True)
    if arguments.report:
        arguments.report.write_text(page(outcomes, arguments.seconds, arguments.seed))
    return int(any(one.wrong for one in outcomes))


if __name__ == "__main__":
    sys.exit(asyncio.run(_main()))
