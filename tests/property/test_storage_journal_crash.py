"""The journal under random loads, power cuts and damage: what was acknowledged comes back."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from doubles.records import Recorder, entry, in_journal_order, lac_packet, run
from doubles.sim_threads import StepClock, StepThreads, turn
from quorumbook.env import Env
from quorumbook.errors import CorruptJournalError, StorageError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.journal.format import fence_record, journal_name, key_record, lac_record
from quorumbook.storage.journal.group_commit import Journal
from quorumbook.storage.journal.marks import NO_MARK, LogMark
from quorumbook.storage.journal.replay import ReplayReport, replay

DIRECTORY = "/j"
Event = tuple[Any, ...]

SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def pieces(draw: st.DrawFn) -> tuple[list[bytes], list[Event]]:
    """One enqueue: its buffers, and what a replay of it must say."""
    ledger_id = draw(st.integers(0, 3))
    kind = draw(st.sampled_from(["run", "run", "run", "key", "fence", "lac", "force"]))
    if kind == "run":
        first = draw(st.integers(0, 50))
        sizes = draw(st.lists(st.sampled_from([0, 1, 9, 100, 475, 700]), min_size=1, max_size=5))
        payloads = [bytes([ledger_id + i + 1]) * size for i, size in enumerate(sizes)]
        events: list[Event] = [
            ("entry", ledger_id, first + i, entry(ledger_id, first + i, payload))
            for i, payload in enumerate(payloads)
        ]
        return [run(ledger_id, first, payloads).data], events
    if kind == "key":
        return [key_record(ledger_id, b"k" * 20)], [("key", ledger_id, b"k" * 20)]
    if kind == "fence":
        return [fence_record(ledger_id)], [("fence", ledger_id)]
    if kind == "lac":
        packet = lac_packet(ledger_id, draw(st.integers(0, 9)))
        return [lac_record(ledger_id, packet)], [("lac", ledger_id, packet)]
    return [], []


def read(
    disk: SimDisk, mark: LogMark = NO_MARK, *, boot: str = "a boot"
) -> tuple[list[Event], ReplayReport]:
    recorder = Recorder()
    clock = StepClock()
    clock.boot = boot
    report = replay(Env(disk=disk, clock=clock), DIRECTORY, mark, recorder)
    return recorder.events, report


async def write(
    disk: SimDisk, load: list[tuple[list[bytes], list[Event]]], steps: list[int], mark: LogMark
) -> list[Event]:
    """Enqueue everything with groups between; return the events that were acknowledged."""
    threads = StepThreads(auto=False)
    env = Env(disk=disk, clock=StepClock(), threads=threads)
    journal = Journal(env, DIRECTORY, mark=mark, file_size_bytes=4096, on_failed=lambda error: None)
    acked: list[Event] = []
    for index, (buffers, events) in enumerate(load):
        journal.enqueue(
            buffers,
            lambda error, events=events: acked.extend(events) if error is None else None,  # type: ignore[misc]
        )
        for _ in range(steps[index % len(steps)]):
            threads.workers["journal"].run_next()
            await turn()
    return acked


@SETTINGS
@given(
    load=st.lists(pieces(), min_size=1, max_size=25),
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    seed=st.integers(0, 2**32),
    keep=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    fail_at=st.one_of(st.none(), st.tuples(st.sampled_from(["write", "sync"]), st.integers(1, 20))),
    tear=st.integers(0, 3000),
)
def test_what_was_acknowledged_comes_back_after_a_power_cut(
    load: list[tuple[list[bytes], list[Event]]],
    steps: list[int],
    seed: int,
    keep: float,
    fail_at: tuple[str, int] | None,
    tear: int,
) -> None:
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    if fail_at is not None:
        disk.faults.fail(fail_at[0], ".txn", at=fail_at[1], written_bytes=tear)
    acked = asyncio.run(write(disk, load, steps, NO_MARK))
    everything = [event for _, events in load for event in events]
    crashed = disk.crash(random.Random(seed), keep=keep)
    events, report = read(crashed, boot="the next boot")
    # Loss of power leaves nobody in doubt: what is missing was not acknowledged.
    assert not report.damaged_tail
    events = in_journal_order(events, everything)
    assert events[: len(acked)] == acked
    fences_aside = [event for event in events if event[0] != "fence"]
    expected = [event for event in everything if event[0] != "fence"]
    assert fences_aside == expected[: len(fences_aside)]
    # The next start goes on behind it, and a second cut changes nothing of what was there.
    more = asyncio.run(write(crashed, load, [1], report.end))
    again, _ = read(crashed.crash(random.Random(seed), keep=keep))
    again = in_journal_order(again, [*events, *everything])
    assert again[: len(events)] == events
    assert again[len(events) : len(events) + len(more)] == more


@SETTINGS
@given(
    load=st.lists(pieces(), min_size=1, max_size=15),
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    damage=st.lists(
        st.tuples(st.integers(0, 2**31), st.sampled_from(["flip", "cut", "zero"])),
        min_size=1,
        max_size=3,
    ),
)
def test_damage_is_refused_or_reported_and_never_replayed(
    load: list[tuple[list[bytes], list[Event]]],
    steps: list[int],
    damage: list[tuple[int, str]],
) -> None:
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    asyncio.run(write(disk, load, steps, NO_MARK))
    good, before = read(disk)
    good = in_journal_order(good, [event for _, events in load for event in events])
    names = disk.list_directory(DIRECTORY)
    for where, kind in damage if names else []:
        path = f"{DIRECTORY}/{names[where % len(names)]}"
        data = bytearray(disk.get(path))
        at = (where // 7) % max(len(data.rstrip(b"\0")), 1)
        if kind == "flip" and at < len(data):
            data[at] ^= 1 << where % 8
        elif kind == "cut":
            del data[at:]
        else:
            data[at : at + 100] = bytes(len(data[at : at + 100]))
        disk.put(path, bytes(data))
    try:
        events, report = read(disk)
    except CorruptJournalError:
        return
    events = in_journal_order(events, good)
    if report.damaged_tail:
        events = [event for event in events if event[0] != "fence"]
        good = [event for event in good if event[0] != "fence"]
    assert events == good[: len(events)]
    if not report.damaged_tail and len(events) < len(good):
        # A last file that ends where a group ended looks as if it had always done so.
        assert report.end < before.end


@SETTINGS
@given(data=st.binary(max_size=3000), is_peer=st.booleans(), start=st.integers(0, 3000))
def test_arbitrary_bytes_never_raise_anything_else(data: bytes, is_peer: bool, start: int) -> None:
    if is_peer:
        data = b"BKLG\0\0\0\6" + bytes(504) + data
    disk = SimDisk()
    disk.put(f"{DIRECTORY}/{journal_name(7)}", data)
    with contextlib.suppress(StorageError):
        read(disk, LogMark(7, start))
