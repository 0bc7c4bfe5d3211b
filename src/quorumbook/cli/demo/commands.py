"""``quorumbook demo``: real events through a real cluster that loses a bookie on the way.

Four bookies run as processes over sqlite metadata.  336,776 flights are written at E3/Qw3/Qa2;
after a third of them a bookie of the ensemble is killed with SIGKILL; the writer goes on and then
vanishes without closing its ledger, as a crash would leave it.  A second process opens the ledger
with recovery and reads everything back.  The SHA-256 of what went in and what came out must agree.
Auto-recovery, a process too, heals the ledger meanwhile; then every copy of every entry is read
from its bookie (``demo_healing.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.cluster.commands import init_cluster
from quorumbook.cli.cluster.supervisor import (
    BookieProcess,
    ChildProcess,
    ConsoleProcess,
    RecoveryProcess,
)
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.demo import flights
from quorumbook.cli.demo.healing import (
    HealingDemo,
    tell,
    verify_copies,
    wait_for_last_copies,
    watch,
)
from quorumbook.cli.errors import DifferenceFoundError
from quorumbook.cli.ledger.appending import EntryAppender
from quorumbook.cli.ports import free_ports
from quorumbook.cli.progress import progress
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import QuorumbookError

if TYPE_CHECKING:
    from quorumbook import BookKeeper, LedgerWriter

_BOOKIES = 4
_SHAPE: dict[str, Any] = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
_PIECE = 500
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class Story:
    """What happened, in numbers."""

    ledger_id: int = -1
    events: int = 0
    size_bytes: int = 0
    acknowledged: int = 0
    killed_bookie: str = ""
    killed_after: int = 0
    write_s: float = 0.0
    longest_pause_s: float = 0.0
    read_s: float = 0.0
    events_read: int = 0
    sha256_written: str = ""
    sha256_read: str = ""
    healing: HealingDemo = field(default_factory=HealingDemo)
    copies_verified: int = 0
    verify_s: float = 0.0
    #: After the healing.
    fragments: list[dict[str, object]] = field(default_factory=list)

    def begin(self, ledger_id: int) -> None:
        """The ledger is there."""
        self.ledger_id = ledger_id

    def append(self, pieces: list[bytes]) -> None:
        """Events went to the writer."""
        self.events += len(pieces)
        self.size_bytes += sum(map(len, pieces))

    def end_write(self, seconds: float, sha256: str) -> None:
        """All of it is safe."""
        self.write_s, self.sha256_written = seconds, sha256

    def acknowledge(self, count: int, pause_s: float) -> None:
        """So many became safe, so long after those before."""
        self.acknowledged += count
        if self.killed_bookie:
            self.longest_pause_s = max(self.longest_pause_s, pause_s)

    def kill(self, bookie_id: str) -> None:
        """A bookie of the ensemble died."""
        self.killed_bookie, self.killed_after = bookie_id, self.acknowledged

    def read(self, count: int) -> None:
        """Events came back."""
        self.events_read += count

    def end_read(self, seconds: float, sha256: str) -> None:
        """All of it came back."""
        self.read_s, self.sha256_read = seconds, sha256

    def end_verify(self, copies: int, fragments: list[dict[str, object]], seconds: float) -> None:
        """Every copy was read."""
        self.copies_verified, self.fragments, self.verify_s = copies, fragments, seconds

    @property
    def is_same(self) -> bool:
        """Whether everything that was acknowledged came back, and nothing else."""
        return (
            self.sha256_written == self.sha256_read
            and self.events == self.acknowledged == self.events_read
        )


class DemoFailedError(QuorumbookError):
    """A step of the demo failed."""

    code = -1


@click.command(cls=ClusterCommand, forms=("table", "json"), has_metadata=False)
@click.option("--keep", is_flag=True, help="Leave the cluster running and its data in place.")
@click.pass_obj
def demo(call: Call, keep: bool) -> None:
    """Write real events, kill a bookie, read all back, have the ledger healed, read every copy."""
    source = flights.path()
    directory = tempfile.mkdtemp(prefix="quorumbook-demo-")
    try:
        call.run(_run(call, source, directory, is_kept=keep))
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


async def _run(call: Call, source: str, directory: str, *, is_kept: bool) -> None:
    call.use_metadata(f"sqlite:///{directory}/metadata.db")
    await init_cluster(call, is_existing_fine=False)
    bookies = [
        BookieProcess(
            f"bookie-{number}", call.environment(),
            os.path.join(directory, f"bookie-{number}"), call.forwarded(),
            is_detached=is_kept, port=port,
        )
        for number, port in enumerate(free_ports(_BOOKIES), 1)
    ]  # fmt: skip
    recovery = RecoveryProcess(
        "recovery", call.environment(), os.path.join(directory, "recovery"),
        # The port that is configured for HTTP, if one is, is a bookie's.
        [*call.forwarded(), "--set", "http.port=0"], is_detached=is_kept,
    )  # fmt: skip
    children: list[ChildProcess] = [*bookies, recovery]
    console = None
    if is_kept:
        console = ConsoleProcess(
            "console", call.environment(), os.path.join(directory, "console"),
            call.forwarded(), is_detached=True, port=call.settings.integer("admin.port"),
        )  # fmt: skip
        children.append(console)
    # Who reads along through a pipe sees each sentence when it is said.
    say = call.note if call.output.form == "json" else partial(print, flush=True)
    story, is_done = Story(), False
    try:
        await asyncio.gather(*(child.start() for child in children))
        say(f"{_BOOKIES} bookies serve, each a process: {_listed(bookies)}.")
        say(f"Auto-recovery runs beside them (process {recovery.pid}).")
        await _play(call, source, bookies, story, say)
        is_done = True
        if not is_kept:
            say(
                "In a browser: `quorumbook demo --keep` leaves the cluster running with its "
                "console, which shows which bookies hold the ledger now, the bookie that is down, "
                "and auto-recovery."
            )
    finally:
        if is_kept and is_done:
            assert console is not None
            _tell_kept(call, say, children, story, console.url)
        else:
            await asyncio.gather(*(child.stop() for child in children))


async def _play(
    call: Call, source: str, bookies: Sequence[BookieProcess], story: Story,
    say: Callable[[str], None],
) -> None:  # fmt: skip
    killed = asyncio.Event()
    async with call.connect() as bk:
        watching = asyncio.create_task(_watch(bk, story, killed))
        try:
            await _write(call, source, bookies, story, killed)
            _tell_write(say, story)
            await _read_elsewhere(call, story)
            _tell_read(say, story)
            if story.is_same:
                await tell(watching, story.healing, say)
                await _verify(bk, story)
                _tell_copies(say, story)
        finally:
            await cancel_and_wait([watching])
    if call.output.form == "json":
        call.output.record({**asdict(story), "is_same": story.is_same})
    if not story.is_same:
        raise DifferenceFoundError(
            f"{story.events} events went in and {story.events_read} came back, SHA-256"
            f" {story.sha256_written[:16]} and {story.sha256_read[:16]}"
        )


async def _watch(bk: BookKeeper, story: Story, killed: asyncio.Event) -> None:
    await killed.wait()
    await watch(bk, story.ledger_id, story.killed_bookie, story.healing)


async def _verify(bk: BookKeeper, story: Story) -> None:
    began = time.perf_counter()
    copies, fragments = await verify_copies(bk, story.ledger_id, story.sha256_written)
    story.end_verify(copies, fragments, time.perf_counter() - began)


async def _write(
    call: Call,
    source: str,
    bookies: Sequence[BookieProcess],
    story: Story,
    killed: asyncio.Event,
) -> None:
    """Append every event; a third of the way one bookie of the ensemble dies."""
    digest = hashlib.sha256()
    async with call.connect() as bk:
        writer = await bk.create_ledger(**_SHAPE)
        story.begin(writer.id)
        appender = EntryAppender(writer, _Acks(story))
        began = time.perf_counter()
        piece: list[bytes] = []
        with progress("writing", flights.COUNT) as advance:
            for event in flights.events(source):
                digest.update(event)
                digest.update(b"\n")
                piece.append(event)
                if len(piece) < _PIECE:
                    continue
                await appender.append(piece)
                story.append(piece)
                advance(len(piece))
                piece = []
                # Making events is hard work; the connections need a turn in between.
                await asyncio.sleep(0)
                if not story.killed_bookie and story.events >= flights.COUNT // 3:
                    await _kill_one(bookies, writer, story)
                    killed.set()
            if piece:
                await appender.append(piece)
                story.append(piece)
            await appender.finish()
        story.end_write(time.perf_counter() - began, digest.hexdigest())
        last_entry_id = writer.last_add_confirmed
        await wait_for_last_copies(bk, writer, last_entry_id, story.killed_bookie)
        # The ledger stays open, as it does when a writer crashes; recovery has to close it.
        await writer.abort()


class _Acks:
    """Counts what is safe, and notes the longest time in which nothing became so."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._last = 0.0

    def __call__(self, safe: range) -> None:
        now = time.perf_counter()
        self._story.acknowledge(len(safe), now - self._last)
        self._last = now


async def _kill_one(bookies: Sequence[BookieProcess], writer: LedgerWriter, story: Story) -> None:
    member = writer.metadata.ensemble[0]
    victim = next(bookie for bookie in bookies if bookie.bookie_id == member)
    await victim.kill()
    story.kill(member)


async def _read_elsewhere(call: Call, story: Story) -> None:
    """Let another process open the ledger with recovery and read all of it."""
    digest = hashlib.sha256()
    began = time.perf_counter()
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quorumbook", "ledger", "read", str(story.ledger_id),
        "--recover", "-o", "raw", *call.forwarded(),
        stdout=asyncio.subprocess.PIPE, env=call.environment(),
        # A Ctrl-C is answered by this process alone.
        start_new_session=True,
    )  # fmt: skip
    assert reader.stdout is not None
    try:
        with progress("reading", story.events) as advance:
            while chunk := await reader.stdout.read(_READ_BYTES):
                digest.update(chunk)
                lines = chunk.count(b"\n")
                story.read(lines)
                advance(lines)
        code = await reader.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            reader.kill()
    if code != 0:
        raise DemoFailedError(f"the reading process ended with exit code {code}")
    story.end_read(time.perf_counter() - began, digest.hexdigest())


def _tell_write(say: Callable[[str], None], story: Story) -> None:
    megabytes = story.size_bytes / 1e6
    say(
        f"{story.events:,} flights of 2013 ({megabytes:.0f} MB of JSON) were written to ledger"
        f" {story.ledger_id} in {story.write_s:.1f} s: {story.events / story.write_s:,.0f} a"
        " second, each on the synced disks of two of three bookies when it was acknowledged."
    )
    say(
        f"After {story.killed_after:,} of them bookie {story.killed_bookie} was killed with"
        f" kill -9; the writer went on without losing any, its longest wait was"
        f" {story.longest_pause_s * 1e3:.0f} ms."
    )


def _tell_read(say: Callable[[str], None], story: Story) -> None:
    say(
        f"A second process recovered the ledger and read {story.events_read:,} events in"
        f" {story.read_s:.1f} s: {story.events_read / story.read_s:,.0f} a second."
    )
    if story.is_same:
        say(f"What was read is what was written: SHA-256 {story.sha256_read}.")


def _tell_copies(say: Callable[[str], None], story: Story) -> None:
    for fragment in story.fragments:
        bookies = fragment["ensemble"]
        assert isinstance(bookies, list)
        say(f"From entry {fragment['first_entry_id']:,} on they are on {', '.join(bookies)}.")
    say(
        f"Every copy of every entry was read from its bookie, {story.copies_verified:,} in"
        f" {story.verify_s:.1f} s: all digests are right, and each bookie's bytes are what was"
        " written."
    )


def _tell_kept(
    call: Call,
    say: Callable[[str], None],
    children: Sequence[ChildProcess],
    story: Story,
    console: str,
) -> None:
    pids = " ".join(
        str(child.pid) for child in children
        if child.report.get("bookie_id") != story.killed_bookie
    )  # fmt: skip
    say(
        f"The cluster goes on running.  Look at it with\n\n"
        f"  quorumbook ledger show {story.ledger_id} --metadata {call.metadata_uri}\n\n"
        f"or in a browser:\n\n"
        f"  {console}/ui/ledgers/{story.ledger_id}  which bookies hold the ledger; the killed "
        f"one is not among them any more\n"
        f"  {console}/ui/bookies  the bookies; {story.killed_bookie} is down\n"
        f"  {console}/ui/recovery  auto-recovery, which has nothing left to do\n\n"
        f"and stop it with: kill {pids}"
    )


def _listed(bookies: Sequence[BookieProcess]) -> str:
    return ", ".join(f"{bookie.bookie_id} (process {bookie.pid})" for bookie in bookies)
