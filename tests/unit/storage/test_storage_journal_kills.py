"""What a kill leaves of the last group is no damage, and damage is never taken for a kill.

A kill leaves a beginning of a group, cut at a block, and the zeros that were there before.
"""

from __future__ import annotations

import struct
from itertools import combinations

import pytest
from google_crc32c import value

from doubles.records import Recorder, journal_bytes, lac_packet, run
from doubles.sim_threads import StepClock
from quorumbook.env import Env
from quorumbook.errors import CorruptJournalError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.journal.format import (
    GROUP_MAGIC,
    HEADER_SIZE,
    closing_record,
    fence_record,
    journal_name,
    key_record,
    lac_record,
)
from quorumbook.storage.journal.marks import NO_MARK, LogMark
from quorumbook.storage.journal.replay import ReplayReport, replay
from quorumbook.storage.journal.synced import Synced, SyncedNote

SALT = 0x5A17_0000_FEED_F00D
KEY = b"k" * 20
BLOCK = 512


def mac_record(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """An entry whose digest nobody but its client can verify."""
    body = struct.pack(">qqqq", ledger_id, entry_id, -1, 3) + b"m" * 20 + payload
    return struct.pack(">i", len(body)) + body


FIRST = [key_record(1, KEY), run(1, 0, [b"a" * 40, b"b" * 500]).data]
#: Last groups: what is in them must not matter.
GROUPS = {
    "small entries": [run(1, 2, [b"%03d" % i * 33 for i in range(60)]).data],
    "records of all kinds": [
        key_record(2, KEY),
        fence_record(3),
        *(
            part
            for i in range(12)
            for part in (
                run(2, i, [b"x" * 301 * i]).data,
                lac_record(2, lac_packet(2, i)),
                fence_record(4 + i),
            )
        ),
    ],
    "one large entry": [run(1, 2, [bytes(range(1, 251)) * 50]).data],
    "entries full of zeros": [run(1, 2, [bytes(2000), b"x" + bytes(1700), bytes(3000)]).data],
    "entries with a MAC": [mac_record(1, 2 + i, b"p" * 700) for i in range(9)],
    "one block": [run(1, 2, [b"x" * 10]).data],
}


def outcome(
    data: bytes,
    *,
    killed: bool = True,
    synced: int | None = None,
    boots: tuple[str, str] = ("", ""),
    mark: LogMark = NO_MARK,
) -> tuple[list[tuple[object, ...]], ReplayReport]:
    """Replay journal 7; ``synced`` is what its note says, ``boots`` the file's and today's."""
    disk = SimDisk()
    disk.make_directory("/j")
    disk.put(f"/j/{journal_name(7)}", data)
    if synced is not None:
        note = SyncedNote(disk, "/j")
        note.write(Synced(7, SALT, synced))
        note.close()
    clock = StepClock()
    clock.boot = boots[1]
    recorder = Recorder()
    report = replay(Env(disk=disk, clock=clock), "/j", mark, recorder, was_unclean=killed)
    assert disk.open_files == 0
    return recorder.events, report


def is_damaged(data: bytes, **facts: object) -> bool:
    try:
        return outcome(data, **facts)[1].damaged_tail  # type: ignore[arg-type]
    except CorruptJournalError:
        return True


def whole(name: str, *, boot: str = "") -> tuple[bytes, int, int]:
    """A journal with this last group; where it begins and ends."""
    start = len(journal_bytes(7, [FIRST], salt=SALT))
    end = len(journal_bytes(7, [FIRST, GROUPS[name]], salt=SALT))
    return journal_bytes(7, [FIRST, GROUPS[name]], zeros=4096, boot=boot, salt=SALT), start, end


def cut(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(len(data) - at)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("boots", [("", ""), ("now", "now"), ("before", "now"), ("now", "")])
def test_r23_a_group_that_a_kill_cut_at_any_block_is_torn_and_no_damage(
    name: str, boots: tuple[str, str]
) -> None:
    data, start, end = whole(name, boot=boots[0])
    first, _ = outcome(data[:start], killed=False)
    events, report = outcome(data, boots=boots)
    assert not report.damaged_tail
    for at in range(start, end, BLOCK):
        for synced in (None, start):
            got, report = outcome(cut(data, at), boots=boots, synced=synced)
            assert not report.damaged_tail, at
            assert set(first) <= set(got) <= set(events), "the group before it is there"
            # The journal of the next start says where this one ended, and is asked from then on.
            assert start <= report.end.offset <= at


@pytest.mark.parametrize("name", GROUPS)
def test_r23_a_file_that_lost_its_size_with_the_power_is_torn_and_no_damage(name: str) -> None:
    # Found by seed 7 of the simulator: a group beyond what was allocated was under way.
    data, start, end = whole(name, boot="before")
    same_boot, _, _ = whole(name, boot="now")
    for size in range(start, end + BLOCK, BLOCK):
        for lost in (None, start):
            written = data if lost is None else data[:lost] + bytes(BLOCK) + data[lost + BLOCK :]
            assert not is_damaged(written[:size], boots=("before", "now")), size
            assert not is_damaged(written[:size], synced=start, boots=("before", "now")), size
        # The size of what was written outlives a process, and that of what was synced the power.
        if name != "entries full of zeros" and size > start:
            assert is_damaged(same_boot[:size], boots=("now", "now")), size
        assert size == end or is_damaged(data[:size], synced=end, boots=("before", "now")), size


@pytest.mark.parametrize("name", GROUPS)
def test_r22_a_group_that_was_synced_and_has_lost_its_end_is_damaged(name: str) -> None:
    data, start, end = whole(name, boot="before")
    for at in range(start, end, BLOCK):
        for boots in (("now", "now"), ("before", "now")):
            assert is_damaged(cut(data, at), synced=end, boots=boots), at
        assert is_damaged(cut(data, at), synced=end, killed=False), at
    assert not is_damaged(data, synced=end)


@pytest.mark.parametrize("name", [name for name in GROUPS if name != "entries full of zeros"])
def test_r22_damage_of_the_last_group_is_never_taken_for_a_kill(name: str) -> None:
    data, start, end = whole(name)
    blocks = range(start, end, BLOCK)
    damaged: list[tuple[object, bytes]] = []
    for at in range(start, end, 1 + (end - start) // 500):
        flipped = bytes([data[at] ^ (1 << at % 8)])
        damaged.append((at, data[:at] + flipped + data[at + 1 :]))
    damaged += [(at, data[:at] + bytes(BLOCK) + data[at + BLOCK :]) for at in blocks[:-1]]
    for one, other in list(combinations(blocks, 2))[:: 1 + len(blocks) // 8]:
        swapped = bytearray(data)
        swapped[one : one + BLOCK] = data[other : other + BLOCK]
        swapped[other : other + BLOCK] = data[one : one + BLOCK]
        damaged.append(((one, other), bytes(swapped)))
    for what, changed in damaged:
        if changed != data:
            assert is_damaged(changed), what
            assert is_damaged(changed, synced=end), what


def test_r22_a_group_that_lacks_its_end_after_a_clean_stop_is_damaged() -> None:
    for name in GROUPS:
        data, start, end = whole(name)
        for at in range(start + BLOCK, end, BLOCK):
            assert is_damaged(cut(data, at), killed=False), (name, at)


def test_r22_groups_that_were_synced_and_are_zeros_are_missed() -> None:
    data, start, end = whole("one block")
    assert not is_damaged(cut(data, start)), "nothing tells them from groups that never were"
    assert is_damaged(cut(data, start), synced=end)
    assert not is_damaged(cut(data, start), synced=start)
    assert not is_damaged(cut(data, start), synced=end, mark=LogMark(7, end)), "it was flushed"


def test_a_note_of_another_file_says_nothing() -> None:
    _, start, end = whole("one block")
    other = journal_bytes(7, [FIRST, GROUPS["one block"]], zeros=4096, salt=SALT + 1)
    assert not is_damaged(cut(other, start), synced=end)


def test_a_journal_that_is_full_to_its_last_byte_is_not_cut() -> None:
    data, _, end = whole("one large entry")
    assert is_damaged(data[:end]), "without the note nothing tells"
    assert not is_damaged(data[:end], synced=end)


def test_the_note_that_was_half_written_leaves_the_one_before() -> None:
    data, start, end = whole("one block")
    disk = SimDisk()
    disk.make_directory("/j")
    for _ in range(2):  # a restart goes on behind what is there
        note = SyncedNote(disk, "/j")
        for at in (HEADER_SIZE, start, end):
            note.write(Synced(7, SALT, at))
        note.close()
    good = bytes(disk.get("/j/synced"))
    newest = next(at for at in (0, 512) if good[at + 24 : at + 32] == struct.pack(">q", end))
    torn = good[: newest + 28] + b"\xff" * 4 + good[newest + 32 :]
    for content, missed in ((good, True), (torn, False), (b"", False), (b"x" * 1024, False)):
        disk.put("/j/synced", content)
        disk.put("/j/7.txn", cut(data, start))
        found = replay(Env(disk=disk), "/j", NO_MARK, Recorder(), was_unclean=True)
        assert found.damaged_tail is missed


# --- payloads that imitate a check ----------------------------------------------------------


def version_1(data: bytes) -> bytes:
    """The same journal as earlier releases wrote it: its header knows no salt."""
    header = bytearray(data[: HEADER_SIZE - 4])
    header[16:20] = struct.pack(">i", 1)
    return bytes(header) + struct.pack(">I", value(bytes(header))) + data[HEADER_SIZE:]


def hostile(at: int, offset: int, shift: int) -> bytes:
    """A payload with what earlier releases took for a check of ``offset`` on each block border."""
    payload = bytearray(b"h" * 6 * BLOCK)
    for border in range(-(at + shift) % BLOCK, len(payload) - 16, BLOCK):
        if border >= 16:
            payload[border - 16 : border] = GROUP_MAGIC + struct.pack(">q", offset) + b"crc!"
    return bytes(payload)


@pytest.mark.parametrize("of_block", range(5))
def test_r24_a_payload_that_imitates_checks_keeps_nobody_from_starting(of_block: int) -> None:
    start = len(journal_bytes(7, [FIRST], salt=SALT))
    at = start + 4 + 36  # where the payload of the group's first entry begins
    for offset in (start, start + of_block * BLOCK):
        payload = hostile(at, offset, 0)
        group = [run(1, 2, [payload, b"tail" * 500]).data]
        data = journal_bytes(7, [FIRST, group], zeros=4096, salt=SALT)
        end = len(data) - 4096
        events, report = outcome(data)
        assert (len(events), report.damaged_tail) == (5, False)
        refused = 0
        for border in range(start, end, BLOCK):
            for boots in (("", ""), ("", "now")):
                assert not outcome(cut(data, border), boots=boots)[1].damaged_tail
            old = journal_bytes(7, [FIRST, group], zeros=4096, salt=0)
            try:
                outcome(version_1(cut(old, border)))
            except CorruptJournalError:
                refused += 1
        assert refused, "the imitation is a good one: files without a salt are refused for it"


def test_r24_a_payload_that_imitates_the_end_of_its_own_group_is_only_a_payload() -> None:
    start = len(journal_bytes(7, [FIRST], salt=SALT))
    for salt in (SALT, 0):
        head = struct.pack(">iqqqq", 36 + 1200, 1, 2, -1, 1200)
        inner = b"i" * 300
        fake = closing_record(7, start, [head + b"dige" + inner])
        payload = (inner + fake).ljust(1200, b"i")
        group = [head + b"dige" + payload]
        data = journal_bytes(7, [FIRST, group], zeros=1024, salt=salt)
        if salt:
            events, report = outcome(data)
            assert (len(events), report.damaged_tail) == (4, False)
        else:
            with pytest.raises(CorruptJournalError, match="a group whose check is good"):
                outcome(version_1(data))


def test_r24_journals_of_earlier_releases_are_read() -> None:
    for group in GROUPS.values():
        data = version_1(journal_bytes(7, [FIRST, group], zeros=4096, salt=0))
        ours = journal_bytes(7, [FIRST, group], zeros=4096, salt=SALT)
        assert outcome(data)[0] == outcome(ours)[0]
        start = len(journal_bytes(7, [FIRST], salt=0))
        for at in range(start, len(data) - 4096, BLOCK):
            assert not outcome(cut(data, at))[1].damaged_tail
        flipped = bytearray(data)
        flipped[start + 30] ^= 1
        assert is_damaged(bytes(flipped))
