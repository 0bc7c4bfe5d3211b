"""Have the N-th system call of a bookie's storage fail, for each N, and account for every entry.

One bookie, a process over sqlite metadata, holds ledgers of one copy, so that nobody else can make
good what it loses.  strace has one of its writes, syncs or other calls fail once, with EIO or
ENOSPC: the N-th of each thread, counted from the beginning of an operation.  The operations:

    group       single adds, each written and synced by itself
    checkpoint  adds with a flush every moment
    roll        adds that fill journals and entry logs
    compaction  deletion and compaction beside adds
    stop        a clean stop with something to flush
    start       a start with a journal to replay

Each add waits for the one before, so no acknowledgement may come once a write or sync of a journal
has failed; the bookie ends then, and says why.  It never ends with a trace, and what it lives
through is in its log.  Afterwards it is killed, started on the same directories without failures,
and every entry that was ever acknowledged is read and compared.

    PYTHONPATH=tests python tests/faults/failing_calls.py --report PAGE
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import quorumbook
from doubles.ports import free_ports
from faults.accounts import payload
from quorumbook.errors import QuorumbookError

CALLS = ("pwrite64", "pwritev", "fdatasync", "fsync", "ftruncate", "fallocate", "rename", "unlink")
ERRORS = {"EIO": os.strerror(5), "ENOSPC": os.strerror(28)}
#: A call that was not reached by so many N in a row has no more of them.
_IN_VAIN = 2
#: So many N in a row that met nothing but one more group of adds are enough of those; a journal
#: that is full, at every 17th, is among them.
_SAME = 24
_PATIENCE_S = 30.0
#: Adds after the failure, which show whether the bookie goes on.
_AFTERMATH = 5
_OPTIONS = {
    "group": (),
    "checkpoint": ("storage.flush_interval_s=0.05",),
    "roll": (
        "storage.flush_interval_s=0.05",
        "storage.journal_file_size_bytes=1M",
        "storage.entry_log_size_bytes=1M",
    ),
    "compaction": (
        "gc.interval_s=0.1",
        "gc.confirm_interval_s=0",
        "gc.minor_compaction_interval_s=0.1",
        "gc.minor_compaction_threshold=0.9",
        "gc.major_compaction_threshold=0.9",
    ),
    "stop": (),
    "start": (),
}
OPERATIONS = tuple(_OPTIONS)
#: Size of the adds beside an operation, and how many of them at most.
_LOAD = {"group": (100, 12), "roll": (60_000, 60), "compaction": (100, 400)}
_USUAL_LOAD = (100, 60)
_SHAPE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}


def why_impossible() -> str | None:
    """Return what this machine lacks, or None."""
    if shutil.which("strace") is None:
        return "strace is missing; Debian has it in strace"
    tried = subprocess.run(
        ["strace", "-f", "-qq", "-o", os.devnull, "-e", "inject=fsync:error=EIO:when=1", "true"],
        capture_output=True,
        check=False,
    )
    if tried.returncode:
        return f"strace may not trace here: {tried.stderr.decode().strip()}"
    return None


@dataclass(frozen=True)
class Fault:
    """Which call fails."""

    operation: str
    call: str
    error: str
    nth: int


@dataclass
class Account:
    """What came of the faults."""

    tried: int = 0
    #: Faults that happened, by operation and by what the bookie did.
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    verified_entries: int = 0


class Bookie:
    """A bookie as a process, on directories that are brought back to where a fault begins."""

    def __init__(self, directory: Path) -> None:
        self._live, self._kept = directory / "live", directory / "kept"
        self._live.mkdir()
        self.uri = f"sqlite:///{self._live}/metadata.db"
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "bookie.log"
        #: Ledgers and their acknowledged entries, each with its size, in the kept state.
        self.ledgers: dict[int, list[bytes]] = {}
        subprocess.run(
            [sys.executable, "-m", "quorumbook", "cluster", "init", "--metadata", self.uri],
            check=True, capture_output=True,
        )  # fmt: skip

    def start(self, *options: str, prefix: tuple[str, ...] = ()) -> bool:
        """Start it; return whether it serves."""
        words = [*prefix, sys.executable, "-m", "quorumbook", "bookie", "run", "-o", "jsonl"]
        words += ["--metadata", self.uri, "--port", str(self._port)]
        words += ["--data-dir", str(self._live / "bookie"), "--set", "http.enabled=false"]
        for option in options:
            words += ["--set", option]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                # strace and what it traces are killed together.
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        return bool(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """Return what it has logged since its last start."""
        return self._log.read_text(errors="replace")

    async def says(self, text: str) -> bool:
        """Return whether a text is in its log, now or soon."""
        deadline = time.monotonic() + _PATIENCE_S
        while text not in self.log():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    def exit_code(self, timeout_s: float = 0.0) -> int | None:
        """Return how it ended; None: it lives."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, if it still lives."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def keep(self) -> None:
        """Take the directories as they are for where each fault begins."""
        shutil.copytree(self._live, self._kept)

    def bring_back(self) -> None:
        """Have the directories as they were kept."""
        shutil.rmtree(self._live)
        shutil.copytree(self._kept, self._live)

    def connect(self) -> quorumbook.BookKeeper:
        """Return a client that does not wait for long.

        It publishes nothing between two adds: that would be a group of its own in the journal,
        and could fail before the add that was safe with the group before is acknowledged.
        """
        return quorumbook.connect(self.uri, add_timeout_s=3, add_quorum_timeout_s=3, lac_delay_s=0)


class Strace:
    """Has a call of a process fail; its log says when that happened."""

    def __init__(self, fault: Fault, log: Path) -> None:
        self._log = log
        log.unlink(missing_ok=True)
        inject = f"inject={fault.call}:error={fault.error}:when={fault.nth}"
        self.words = ("strace", "-f", "-ttt", "-y", "-o", str(log))
        self.words += ("-e", f"trace={fault.call}", "-e", inject)

    @contextlib.contextmanager
    def attached(self, pid: int) -> Iterator[None]:
        """Trace a process from now on until the block's end, or its own."""
        tracer = subprocess.Popen([*self.words, "-p", str(pid)], stderr=subprocess.PIPE)
        assert tracer.stderr is not None
        try:
            line = tracer.stderr.readline()
            assert b"attached" in line, line
            yield
        finally:
            tracer.terminate()
            tracer.wait()
            tracer.stderr.close()

    def failed(self) -> list[tuple[float, str]]:
        """Return when which calls failed."""
        with contextlib.suppress(FileNotFoundError):
            lines = self._log.read_text(errors="replace").splitlines()
            return [(float(line.split()[1]), line) for line in lines if "(INJECTED)" in line]
        return []


async def prepare(bookie: Bookie) -> None:
    """Make ledgers that live, ledgers that are deleted beside them, and a journal to replay."""
    assert bookie.start("storage.entry_log_size_bytes=1M", "storage.flush_interval_s=0.05")
    async with bookie.connect() as bk:
        living, dead = [await bk.create_ledger(**_SHAPE) for _ in range(2)]
        for entry_id in range(120):
            for ledger in (living, dead, dead, dead):
                if ledger is living:
                    bookie.ledgers.setdefault(ledger.id, []).append(payload(ledger.id, entry_id))
                    await ledger.append(payload(ledger.id, entry_id))
                else:
                    ledger.append_nowait(bytes(8000))
        await dead.drain()
        await living.close()
        await dead.close()
        bookie.send(signal.SIGTERM)
        bookie.exit_code(_PATIENCE_S)
        bookie.kill()
        assert bookie.start()
        await bk.delete_ledger(dead.id)
    async with bookie.connect() as bk:
        replayed = await bk.create_ledger(**_SHAPE)
        bookie.ledgers[replayed.id] = [payload(replayed.id, n) for n in range(50)]
        await replayed.append_batch_nowait(bookie.ledgers[replayed.id])
        bookie.kill()
        await replayed.abort()
    bookie.keep()


async def add(bookie: Bookie, fault: Fault, strace: Strace) -> tuple[int, list[bytes], float]:
    """Add one entry after the other, until some after the failure, or one that is not taken.

    Returns:
        The ledger, what was acknowledged, and when that was for the last time.
    """
    size, most = _LOAD.get(fault.operation, _USUAL_LOAD)
    acknowledged: list[bytes] = []
    last, ledger_id, left = 0.0, -1, most
    with contextlib.suppress(QuorumbookError):
        async with asyncio.timeout(_PATIENCE_S), bookie.connect() as bk:
            writer = await bk.create_ledger(**_SHAPE)
            ledger_id = writer.id
            is_failed = False
            try:
                while left:
                    left -= 1
                    entry = payload(ledger_id, len(acknowledged)).ljust(size, b".")
                    await writer.append(entry)
                    last = time.time()
                    acknowledged.append(entry)
                    if not is_failed and strace.failed():
                        is_failed, left = True, min(left, _AFTERMATH)
            finally:
                await writer.abort()
    return ledger_id, acknowledged, last


def judge(fault: Fault, failed: list[tuple[float, str]], last: float, code: int | None,
          log: str) -> str:  # fmt: skip
    """Return what the bookie did; what it may not do raises AssertionError."""
    journal = [when for when, line in failed if "/journal/" in line and ".txn" in line]
    assert "Traceback" not in log, f"{fault}: {log}"
    assert code in (None, 0, 1, 4, 5), f"{fault}: exit code {code}: {log}"
    if journal and fault.call in ("pwrite64", "pwritev", "fdatasync", "fsync"):
        assert not last > journal[0], f"{fault}: acknowledged after the journal failed: {failed}"
        assert code is not None, f"{fault}: it goes on after its journal failed: {log}"
    if code is None:
        return "goes on"
    if code == 0:
        return "stops as asked"
    last_word = log.strip().splitlines()[-1]
    assert re.match(r"quorumbook: .{20}", last_word), f"{fault}: {last_word!r} gives no reason"
    return "stops, with the reason"


async def verify(bookie: Bookie, expected: dict[int, list[bytes]], fault: Fault) -> int:
    """Start the bookie without failures and compare all that it ever acknowledged."""
    assert bookie.start(), f"{fault}: no start afterwards: {bookie.log()}"
    count = 0
    async with bookie.connect() as bk:
        for ledger_id, entries in expected.items():
            async with bk.open_ledger(ledger_id) as reader:
                found = [entry.payload async for entry in reader.read(0)]
            assert len(found) >= len(entries), (
                f"{fault}: {len(entries)} of ledger {ledger_id} were acknowledged,"
                f" {len(found)} are there"
            )
            assert found[: len(entries)] == entries, f"{fault}: ledger {ledger_id} is changed"
            count += len(found)
    return count


async def fail(bookie: Bookie, fault: Fault, directory: Path, account: Account) -> list[str]:
    """Try one fault; return the calls that failed."""
    bookie.bring_back()
    strace = Strace(fault, directory / "strace.log")
    options = _OPTIONS[fault.operation]
    expected = dict(bookie.ledgers)
    last = 0.0
    try:
        if fault.operation == "start":
            is_up = bookie.start(*options, prefix=(*strace.words, "--seccomp-bpf"))
            code = None if is_up else bookie.exit_code(_PATIENCE_S)
        else:
            assert bookie.start(*options), bookie.log()
            if fault.operation == "stop":
                ledger_id, entries, _ = await add(bookie, fault, strace)
                expected[ledger_id] = entries
            with strace.attached(bookie.pid):
                if fault.operation == "stop":
                    bookie.send(signal.SIGTERM)
                    code = await asyncio.to_thread(bookie.exit_code, _PATIENCE_S)
                    assert code is not None, f"{fault}: it does not stop: {bookie.log()}"
                else:
                    ledger_id, entries, last = await add(bookie, fault, strace)
                    if entries:
                        expected[ledger_id] = entries
                    wait_s = 5.0 if any(".txn" in line for _, line in strace.failed()) else 0.0
                    code = await asyncio.to_thread(bookie.exit_code, wait_s)
        failed = strace.failed()
        account.tried += 1
        # A bookie has reserves for a full disk: it may do without what it was refused.
        if failed and code is None and fault.error != "ENOSPC":
            is_said = await bookie.says(ERRORS[fault.error])
            assert is_said, f"{fault}: it says nothing of {failed}: {bookie.log()}"
        if failed:
            outcome = judge(fault, failed, last, code, bookie.log())
            account.outcomes[fault.operation, outcome] += 1
        bookie.kill()
        account.verified_entries += await verify(bookie, expected, fault)
    finally:
        bookie.kill()
    return [line for _, line in failed]


def is_plain_group(lines: list[str]) -> bool:
    """Tell whether nothing failed but writing or syncing a journal."""
    return all("/journal/" in line and ".txn" in line for line in lines)


async def run(
    faults: Iterable[Fault], directory: Path, say: Callable[[str], None] = lambda _: None
) -> Account:
    """Try faults; any promise broken raises AssertionError.

    Once a call was not reached ``_IN_VAIN`` times in a row, or met the same ``_SAME`` times, later
    ones of it are left out.
    """
    account = Account()
    in_vain, same = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    bookie = Bookie(directory)
    try:
        await prepare(bookie)
        for fault in faults:
            site = (fault.operation, fault.call, fault.error)
            if in_vain[site] >= _IN_VAIN or same[site] >= _SAME:
                continue
            failed = await fail(bookie, fault, directory, account)
            in_vain[site] = 0 if failed else in_vain[site] + 1
            same[site] = same[site] + 1 if is_plain_group(failed) else 0
            say(f"{fault}: {'verified' if failed else 'no such call'}")
    finally:
        bookie.kill()
    return account


def every(nth_max: int) -> Iterator[Fault]:
    """Yield all faults up to an N; ``run`` leaves those out that nothing reaches."""
    for operation in OPERATIONS:
        for call in CALLS:
            for error in ERRORS:
                for nth in range(1, nth_max + 1):
                    yield Fault(operation, call, error, nth)


def report(account: Account, took_s: float) -> str:
    """Describe a run in a page."""
    return "\n".join(
        [
            "# Failing calls",
            "",
            f"`make torture` on Linux {platform.release()}, Python {platform.python_version()},"
            f" {took_s:.0f} s: a call of a bookie's storage fails once, with EIO or ENOSPC, the"
            f" N-th of each thread in an operation, for each N; after {_SAME} in a row that only"
            " met one more group of adds, no more of them.",
            "",
            f"Calls: {', '.join(CALLS)}.",
            "",
            "| operation | what the bookie did | failures |",
            "|---|---|---|",
            *(
                f"| {operation} | {outcome} | {count} |"
                for (operation, outcome), count in sorted(account.outcomes.items())
            ),
            "",
            f"{account.verified_entries:,} entries were read back and compared. Acknowledged"
            " entries lost or changed: 0. Acknowledged after a failed write or sync of the"
            " journal: 0.",
            "",
        ]
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nth-max", type=int, default=1000)
    parser.add_argument("--only", choices=OPERATIONS, action="append", default=[])
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    reason = why_impossible()
    if reason is not None:
        sys.exit(reason)
    began = time.monotonic()
    faults = (
        fault
        for fault in every(arguments.nth_max)
        if fault.operation in (arguments.only or OPERATIONS)
    )
    with tempfile.TemporaryDirectory() as name:
        account = asyncio.run(run(faults, Path(name), lambda line: print(line, flush=True)))
    page = report(account, time.monotonic() - began)
    print(page)
    if arguments.report is not None:
        arguments.report.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
