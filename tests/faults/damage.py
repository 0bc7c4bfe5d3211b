"""Damage every kind of file of a bookie, and demand that nothing about it is silently wrong.

Two images of one bookie are made: one that stopped cleanly, one that was killed with entries in
its journal alone.  Each case copies an image, damages one file (a flipped bit, zeros, a cut, a
deletion, two stretches or files exchanged), and starts the bookie.  Then one of these must hold:

    refused     the start says what is wrong; the same command after `quorumbook disk fsck
                --repair`, or on emptied directories, goes on as below
    found       some entries answer an error, or their ledgers are in limbo
    harmless    every entry is there

and in none of them is an acknowledged entry denied, are other bytes given back after one scrub,
is a fence, key or explicit last add confirmed forgotten.  In the end whatever was not readable is
added again, as a replication worker would, and everything must be whole, limbo over, also after
another restart.

    PYTHONPATH=tests python tests/faults/damage.py --cases 10000 --report docs/reports/damage.md

What no bookie can notice, and no case makes: whole groups taken off the end of the newest journal
of a killed bookie with zeros put in their place.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from doubles.records import entry, lac_packet
from doubles.storage_world import KEY, run_of
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.env import Env
from quorumbook.errors import (
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumbookError,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.store import MetadataStore
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.digest import DigestType
from quorumbook.storage.options import GcOptions, ScrubOptions, StorageOptions
from quorumbook.storage.states.ledgers import lac_of_packet

BOOKIE = "damaged"
KINDS = ("flip", "zero", "truncate", "delete", "exchange", "swap")
IMAGES = ("stopped", "killed")
#: Ledgers that are fenced, and one with an explicit last add confirmed.
FENCED, WITH_LAC, OPEN, LAC = (3, 4), 2, 5, 7
STORAGE = StorageOptions(
    write_cache_size_bytes=256 * 1024,
    read_cache_size_bytes=0,
    flush_interval_s=3600,
    journal_file_size_bytes=64 * 1024,
    entry_log_size_bytes=32 * 1024,
    reserve_size_bytes=64 * 1024,
)


def ids_of(ledger_id: int) -> list[int]:
    """Return the entries that were acknowledged: one ledger is striped, one has late entries."""
    return list(range(0, 60, 2)) if ledger_id == 1 else list(range(40))


LEDGERS = (0, 1, 2, 3, 4, OPEN)


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Bytes that belong to this entry alone."""
    return b"%d:%d " % (ledger_id, entry_id) * (20 + entry_id % 7)


def body(ledger_id: int, entry_id: int) -> bytes:
    """The entry."""
    return entry(ledger_id, entry_id, payload(ledger_id, entry_id), entry_id - 1)


def metadata(ledger_id: int) -> LedgerMetadata:
    """What the cluster says of a ledger; all but one are closed."""
    is_open = ledger_id == OPEN
    width = 2 if ledger_id == 1 else 1
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=width,
        write_quorum_size=1,
        ack_quorum_size=1,
        state=LedgerState.OPEN if is_open else LedgerState.CLOSED,
        last_entry_id=-1 if is_open else ids_of(ledger_id)[-1],
        length=0 if is_open else 1,
        fragments=(Fragment(0, (BOOKIE, "other")[:width]),),
        digest_type=DigestType.CRC32C,
        password=b"",
    )


def options_in(root: Path, **changes: Any) -> BookieOptions:
    """Return the bookie's options; it does nothing by itself."""
    options = BookieOptions(
        journal_directories=(f"{root}/journal",),
        ledger_directories=(f"{root}/ledgers0", f"{root}/ledgers1"),
        bookie_id=BOOKIE,
        port=0,
        storage=STORAGE,
        gc=GcOptions(interval_s=3600, reserve_size_bytes=0),
        scrub=ScrubOptions(interval_s=0, heal_interval_s=3600, rate_bytes=0),
        max_disk_usage=1.0,
        disk_usage_writable=1.0,
        min_high_priority_free_bytes=1,
    )
    return replace(options, **changes)


# The images


async def make_images(root: Path, store: MetadataStore) -> None:
    """Make both images below a directory; the bookie's place is the same in every case."""
    bookie = Bookie(Env(), options_in(root / "bookie"), store)
    await bookie.start()
    for ledger_id in LEDGERS:
        await LedgerManager(store).create(metadata(ledger_id))
    # Several entry logs and journals, and runs that were cut by later ones.
    for some in (slice(0, 10), slice(10, 20), slice(5, 8)):
        for ledger_id in LEDGERS:
            await _append(bookie, ledger_id, ids_of(ledger_id)[some])
        await bookie.storage.flush()
    for ledger_id in FENCED:
        await _done(lambda done, i=ledger_id: bookie.storage.fence(_handle(bookie, i), done))
    packet = lac_packet(WITH_LAC, LAC)
    await _done(lambda done: bookie.storage.write_lac(_handle(bookie, WITH_LAC), packet, LAC, done))
    for ledger_id in LEDGERS:
        await _append(bookie, ledger_id, ids_of(ledger_id)[20:])
    shutil.copytree(root / "bookie", root / "killed")
    await bookie.stop()
    (root / "bookie").rename(root / "stopped")


def _handle(bookie: Bookie, ledger_id: int) -> Any:
    storage = bookie.storage
    return storage.handle(ledger_id) or storage.create_handle(ledger_id, KEY)


async def _done(begin: Any) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    begin(done)
    await future


async def _append(bookie: Bookie, ledger_id: int, entry_ids: list[int]) -> None:
    items = [
        (_handle(bookie, ledger_id), run_of(ledger_id, [i], payload(ledger_id, i)))
        for i in entry_ids
    ]
    await _done(lambda done: bookie.storage.append(items, done))


# Damage


def files_of(root: Path) -> list[Path]:
    """Return the files that a bookie reads, the lock aside."""
    return sorted(
        path for path in root.rglob("*") if path.is_file() and path.name != "quorumbook.lock"
    )


def kind_of(path: Path) -> str:
    """Return what a file is, for the report."""
    kinds = {".log": "entry log", ".txn": "journal"}
    return kinds.get(path.suffix, path.name)


def damage(root: Path, rng: random.Random) -> str | None:
    """Damage one file at random; say which and how, or None where that is nothing."""
    files = files_of(root)
    # By kind first: there are many entry logs.
    chosen = rng.choice(sorted({kind_of(path) for path in files}))
    path = rng.choice([path for path in files if kind_of(path) == chosen])
    how = rng.choice(KINDS)
    data = bytearray(path.read_bytes())
    before = bytes(data)
    where = ""
    if how == "delete":
        path.unlink()
    elif how == "swap":
        others = [one for one in files if kind_of(one) == chosen and one != path]
        if not others:
            return None
        other = rng.choice(others)
        if other.read_bytes() == before:
            return None
        path.write_bytes(other.read_bytes())
        other.write_bytes(before)
    elif not data:
        return None
    else:
        # Where something is, more often than among the zeros that lie ahead.
        used = len(before.rstrip(b"\0")) or 1
        start = rng.randrange(used if rng.random() < 0.9 else len(data))
        length = 1 << rng.randrange(13)
        if how == "flip":
            data[start] ^= 1 << rng.randrange(8)
        elif how == "zero":
            data[start : start + length] = bytes(len(data[start : start + length]))
        elif how == "truncate":
            del data[start:]
        else:
            other_start = rng.randrange(used)
            one, two = data[start : start + length], data[other_start : other_start + length]
            if len(one) != len(two) or abs(start - other_start) < length:
                return None
            data[start : start + length], data[other_start : other_start + length] = two, one
        if data == before:
            return None
        path.write_bytes(data)
        where = f" at byte {start}"
    return f"{chosen}: {how}{where} ({path.relative_to(root)})"


# What must hold


@dataclass
class Case:
    """One case and what came of it."""

    seed: int
    image: str
    what: str
    outcome: str = ""
    problems: list[str] = field(default_factory=list)


async def run_case(seed: int, images: Path, store: MetadataStore) -> Case | None:
    """Run a case; None if its lot is no damage."""
    rng = random.Random(seed)
    image = IMAGES[seed % 2]
    root = images / "bookie"
    shutil.copytree(images / image, root)
    try:
        what = damage(root, rng)
        if what is None:
            return None
        case = Case(seed, image, what)
        try:
            await _examine(case, root, store)
        except Exception as error:
            case.problems.append(f"{type(error).__name__}: {str(error)[:200]}")
        return case
    finally:
        shutil.rmtree(root)


async def _examine(case: Case, root: Path, store: MetadataStore) -> None:
    options = options_in(root)
    try:
        bookie = await _started(options, store)
    except QuorumbookError as error:
        case.outcome = "refused"
        if not str(error):
            case.problems.append("refused without a word")
        # The way out that is always there: what was here is copied from other bookies.
        for directory in (*options.journal_directories, *options.ledger_directories):
            shutil.rmtree(directory)
        bookie = await _started(replace(options, stamp_missing_cookies=True), store)
    try:
        unread = await _check(case, bookie)
        if not case.outcome:
            case.outcome = "found" if unread or _limbo(bookie) else "harmless"
        await _repair(case, bookie, unread)
    finally:
        await bookie.stop()
    bookie = await _started(options, store)
    try:
        if await _check(case, bookie):
            case.problems.append("what was repaired is damaged after a restart")
    finally:
        await bookie.stop()


async def _started(options: BookieOptions, store: MetadataStore) -> Bookie:
    bookie = Bookie(Env(), options, store)
    await bookie.start()
    return bookie


def _limbo(bookie: Bookie) -> list[int]:
    handles = ((i, bookie.storage.handle(i)) for i in LEDGERS)
    return [i for i, handle in handles if handle is not None and handle.is_in_limbo]


async def _check(case: Case, bookie: Bookie) -> list[tuple[int, int]]:
    """Scrub, then look at all that was promised; return the entries that cannot be read."""
    assert bookie.healing is not None
    await bookie.healing.scrubber.cycle()
    wanted = [(ledger_id, e) for ledger_id in LEDGERS for e in ids_of(ledger_id)]
    results = await _read(bookie, wanted)
    unread = []
    for (ledger_id, entry_id), result in zip(wanted, results, strict=True):
        if isinstance(result, NoSuchEntryError | NoSuchLedgerError):
            case.problems.append(f"entry {entry_id} of ledger {ledger_id} is denied")
        elif isinstance(result, BaseException):
            unread.append((ledger_id, entry_id))
        elif _payload(result) != payload(ledger_id, entry_id):
            case.problems.append(f"entry {entry_id} of ledger {ledger_id} has other bytes")
    for ledger_id in LEDGERS:
        _check_state(case, bookie, ledger_id)
    return unread


def _payload(found: bytes) -> bytes:
    return found[36:]


def _check_state(case: Case, bookie: Bookie, ledger_id: int) -> None:
    handle = bookie.storage.handle(ledger_id)
    if handle is None or handle.is_in_limbo:
        if handle is None:
            case.problems.append(f"ledger {ledger_id} is forgotten")
        return
    # A closed ledger takes no add that its metadata does not allow; an open one has its fence.
    if (
        ledger_id in FENCED
        and not handle.is_fenced
        # Whether a bookie has come to rest is not told to anybody.
        and bookie._started().operations.adds.gate is None
    ):
        case.problems.append(f"the fence of ledger {ledger_id} is forgotten")
    if handle.master_key not in (KEY, b""):
        case.problems.append(f"ledger {ledger_id} has another key")
    packet = handle.explicit_lac
    if (
        ledger_id == WITH_LAC
        # Whether a bookie has come to rest is not told to anybody.
        and bookie._started().operations.adds.gate is None
        and (packet is None or lac_of_packet(packet) != LAC)
    ):
        case.problems.append("the explicit last add confirmed is forgotten")


async def _read(bookie: Bookie, wanted: list[tuple[int, int]]) -> list[Any]:
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    bookie.storage.read(wanted, future.set_result)
    return await future


async def _repair(case: Case, bookie: Bookie, unread: list[tuple[int, int]]) -> None:
    """Add again what cannot be read, as a worker does, and see doubt and damage end."""
    for ledger_id, entry_id in unread:
        await _append(bookie, ledger_id, [entry_id])
    healing = bookie.healing
    assert healing is not None
    healing._pauses.clear()  # whether a bookie has come to rest is not told to anybody
    await healing.heal()
    if _limbo(bookie) not in ([], [OPEN]):
        case.problems.append(f"ledgers {_limbo(bookie)} stay in limbo")
    if unread and {ledger for ledger, _ in unread} != {OPEN}:
        left = {row.ledger_id for row in await bookie.storage.scrub.damaged_runs()}
        if left - {OPEN}:
            case.problems.append(f"damage of ledgers {sorted(left)} stays on record")


# Many cases


@contextlib.asynccontextmanager
async def prepared(root: Path) -> Any:
    """Make images and metadata; give what ``run_case`` wants."""
    name = f"damage-{os.getpid()}-{id(root)}"
    store = await open_store(f"memory://{name}", create=True)
    try:
        await init_cluster(store)
        await make_images(root, store)
        yield root, store
    finally:
        await store.close()
        forget_memory_tree(name)


async def run(first_seed: int, count: int, root: Path) -> list[Case]:
    """Run so many cases that are damage; return all of them."""
    cases: list[Case] = []
    async with prepared(root) as (images, store):
        seed = first_seed
        while len(cases) < count:
            case = await run_case(seed, images, store)
            seed += 1
            if case is not None:
                cases.append(case)
    return cases


def report(cases: list[Case], took_s: float) -> str:
    """Describe a run in a page."""
    outcomes = ("refused", "found", "harmless")
    table: dict[str, Counter[str]] = {}
    for case in cases:
        table.setdefault(" ".join(case.what.split(": ", 1)[0].split()), Counter())[
            case.outcome
        ] += 1
    bad = [case for case in cases if case.problems]
    lines = [
        "# Damage",
        "",
        f"{len(cases):,} cases on Linux {platform.release()}, Python {platform.python_version()}, "
        f"{took_s:.0f} s: one file of a bookie is damaged, it is started, scrubbed, repaired as a "
        "replication worker does, and started again.",
        "",
        "| file | refused with a reason | found, or in limbo | harmless |",
        "|---|---|---|---|",
        *(
            f"| {kind} | " + " | ".join(str(table[kind][name]) for name in outcomes) + " |"
            for kind in sorted(table)
        ),
        "",
        "Entries denied, other bytes given back, fences or keys forgotten, not repaired: "
        f"{len(bad)}",
        "",
    ]
    for case in bad:
        lines += [f"- seed {case.seed}, {case.image}, {case.what}: {'; '.join(case.problems[:3])}"]
    return "\n".join(lines)


def _part(arguments: tuple[int, int]) -> list[Case]:
    import logging

    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(run(*arguments, Path(directory)))


def run_many(count: int, seed: int, workers: int) -> list[Case]:
    """Run cases in several processes."""
    share = -(-count // workers)
    parts = [(seed + 1_000_000 * number, share) for number in range(workers)]
    if workers == 1:
        return _part(parts[0])
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return [case for cases in pool.map(_part, parts) for case in cases]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    cases = run_many(arguments.cases, arguments.seed, arguments.workers)
    page = report(cases, time.monotonic() - began)
    print(page)
    if arguments.report is not None:
        arguments.report.write_text(page)
    return 1 if any(case.problems for case in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
