from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator

import pytest

from quorumbook.env import Env
from quorumbook.errors import CorruptStateError, StorageError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.states.state_file import (
    NAME,
    Deletion,
    StateCopies,
    StateFileContent,
    StoredLedger,
    decode_states,
    encode_blocks,
    encode_deletion,
    encode_record,
    read_states,
)

KEY = b"k" * 20


class Bookie:
    """Ledger states and their copies."""

    def __init__(self, *directories: str) -> None:
        self.disk = SimDisk()
        for directory in directories:
            self.disk.make_directory(directory)
        self.directories = directories
        self.copies = StateCopies(Env(disk=self.disk), directories)
        self.states: dict[int, StoredLedger] = {}

    def write(
        self,
        *states: StoredLedger,
        deleted: Iterable[int] = (),
        new: Collection[int] = (),
        written: set[str] | None = None,
    ) -> None:
        self.states.update({state.ledger_id: state for state in states})
        for ledger_id in deleted:
            self.states.pop(ledger_id, None)
        gone = [Deletion(ledger_id, None) for ledger_id in deleted]
        self.copies.write(states, gone, self.states.values, new, written)

    def content(self, directory: str) -> dict[int, StoredLedger]:
        found = read_states(self.disk, directory)
        assert found is not None
        return found.states


def states_of(data: bytes) -> dict[int, StoredLedger]:
    return decode_states(data).states


def encoded(records: Iterable[bytes]) -> bytes:
    return b"".join(block for block, _ in encode_blocks(records))


def test_every_field_comes_back() -> None:
    states = [
        StoredLedger(1, KEY),
        StoredLedger(2, b"", is_fenced=True),
        StoredLedger(3, KEY, is_in_limbo=True, explicit_lac=b""),
        StoredLedger(4, KEY, born_at=2**40),
        StoredLedger(2**62, KEY, True, True, b"packet" * 10, last_add_confirmed=7, born_at=1),
    ]
    assert states_of(encoded(map(encode_record, states))) == {
        state.ledger_id: state for state in states
    }


def test_a_deletion_is_remembered_as_long_as_it_should_be_also_beside_a_later_ledger() -> None:
    state = StoredLedger(7, KEY)
    first = [encode_record(state), encode_deletion(Deletion(7, None))]
    assert decode_states(encoded(first))[:2] == ({}, {})
    for at_ms in (0, 1, 2**60):
        later = [*first, encode_deletion(Deletion(7, at_ms)), encode_record(state)]
        assert decode_states(encoded(later))[:2] == ({7: state}, {7: at_ms})


def test_every_directory_gets_what_changed() -> None:
    bookie = Bookie("/a", "/b")
    bookie.write(StoredLedger(1, KEY))
    bookie.write(StoredLedger(2, KEY), StoredLedger(1, KEY, is_fenced=True))
    bookie.write(deleted=[2])
    for directory in bookie.directories:
        assert bookie.content(directory) == {1: StoredLedger(1, KEY, is_fenced=True)}


def test_what_was_written_survives_a_power_cut() -> None:
    bookie = Bookie("/a")
    bookie.write(StoredLedger(1, KEY))
    bookie.write(StoredLedger(2, KEY))
    found = read_states(bookie.disk.crash(), "/a")
    assert found is not None
    assert found.states == bookie.states


def test_a_torn_last_block_is_cut_off_and_written_over() -> None:
    for seed in range(20):
        bookie = Bookie("/a")
        bookie.write(StoredLedger(1, KEY))
        bookie.disk.faults.fail("sync", NAME)
        with pytest.raises(StorageError):
            bookie.write(*(StoredLedger(i, KEY) for i in range(2, 60)))
        disk = bookie.disk.crash(random.Random(seed), keep=0.5)
        copies = StateCopies(Env(disk=disk), ["/a"])
        found = copies.load()[0]
        assert isinstance(found, StateFileContent)
        assert found.states.get(1) == StoredLedger(1, KEY)
        assert len(found.states) in (1, 59)
        copies.write([StoredLedger(99, KEY)], [], dict)
        again = read_states(disk, "/a")
        assert again is not None
        assert again.states == {**found.states, 99: StoredLedger(99, KEY)}
        assert not again.is_torn


def test_after_a_failed_write_the_copy_is_written_as_a_whole() -> None:
    bookie = Bookie("/a")
    bookie.write(StoredLedger(1, KEY))
    bookie.disk.faults.fail("write", NAME)
    with pytest.raises(StorageError):
        bookie.write(StoredLedger(2, KEY))
    bookie.write(StoredLedger(3, KEY))
    assert bookie.content("/a") == {i: StoredLedger(i, KEY) for i in (1, 2, 3)}


def test_what_one_directory_refuses_is_written_once_to_the_other() -> None:
    bookie = Bookie("/a", "/b")
    bookie.write(StoredLedger(0, KEY))
    states = [StoredLedger(one, KEY) for one in range(1, 5000)]
    written: set[str] = set()
    bookie.disk.faults.fail("write", "/b", permanent=True)
    sizes = set()
    for _ in range(5):
        with pytest.raises(StorageError):
            bookie.write(*states, new=range(1, 5000), written=written)
        sizes.add(len(bookie.disk.get(f"/a/{NAME}")))
    assert len(sizes) == 1
    assert written == {"/a"}
    bookie.disk.faults.heal()
    bookie.write(*states, new=range(1, 5000), written=written)
    assert bookie.content("/a") == bookie.content("/b") == bookie.states
    # The need was counted once: the file is written anew when it holds twice as much.
    for state in states:
        bookie.write(state._replace(is_fenced=True))
    for _ in range(2):
        bookie.write(*states)
    assert len(bookie.disk.get(f"/a/{NAME}")) <= 2 * sizes.pop()


def test_a_copy_that_was_damaged_since_is_written_although_it_had_everything() -> None:
    bookie = Bookie("/a", "/b")
    bookie.write(StoredLedger(0, KEY))
    bookie.disk.faults.fail("write", "/b")
    written: set[str] = set()
    with pytest.raises(StorageError):
        bookie.write(StoredLedger(1, KEY), written=written)
    bookie.disk.faults.fail("write", "/a")
    with pytest.raises(StorageError):
        bookie.write(StoredLedger(2, KEY))
    bookie.write(StoredLedger(1, KEY), written=written)
    assert bookie.content("/a") == bookie.content("/b") == bookie.states


def test_a_file_that_has_grown_to_twice_its_need_is_written_anew() -> None:
    bookie = Bookie("/a")
    for i in range(3000):
        bookie.write(StoredLedger(1, KEY, is_fenced=bool(i % 2)))
    assert len(bookie.disk.get(f"/a/{NAME}")) < 70_000
    assert bookie.content("/a") == bookie.states


def test_a_file_of_new_ledgers_only_is_never_written_anew() -> None:
    bookie = Bookie("/a")
    bookie.write(StoredLedger(0, KEY))
    for start in range(1, 5000, 100):
        new = [StoredLedger(one, KEY) for one in range(start, start + 100)]
        before = bookie.disk.get(f"/a/{NAME}")
        bookie.write(*new, new={one.ledger_id for one in new})
        assert bookie.disk.get(f"/a/{NAME}").startswith(before)
    assert bookie.content("/a") == bookie.states
    # What they become is no news, and the file is written anew for it as any other.
    for state in list(bookie.states.values()):
        bookie.write(state._replace(is_fenced=True))
    assert len(bookie.disk.get(f"/a/{NAME}")) < 2 * 5000 * len(encode_record(state)) + 100
    assert bookie.content("/a") == bookie.states


@pytest.mark.parametrize("packet_bytes", [0, 1000])
def test_a_file_whose_ledgers_come_and_go_does_not_grow(packet_bytes: int) -> None:
    bookie = Bookie("/a")
    bookie.write(*[StoredLedger(one, KEY) for one in range(100)])
    last: set[int] = set()
    for start in range(100, 5000, 100):
        packet = bytes(packet_bytes) or None
        new = [StoredLedger(one, KEY, explicit_lac=packet) for one in range(start, start + 100)]
        bookie.write(*new, deleted=last, new={one.ledger_id for one in new})
        last = {one.ledger_id for one in new}
    need = sum(len(encode_record(state)) for state in bookie.states.values())
    assert len(bookie.disk.get(f"/a/{NAME}")) < max(66_000, 4 * need)
    assert bookie.content("/a") == bookie.states


def test_millions_of_ledgers_are_not_held_while_their_file_is_written_anew() -> None:
    bookie = Bookie("/a")
    bookie.write(StoredLedger(1, KEY))
    bookie.disk.unlink(f"/a/{NAME}")
    copies = StateCopies(Env(disk=bookie.disk), ["/a"])
    one = StoredLedger(1 << 40, KEY, explicit_lac=bytes(1000))
    ahead: list[int] = []

    def everything() -> Iterator[StoredLedger]:
        for number in range(8000):
            yield one._replace(ledger_id=number)
            ahead.append((number + 1) * len(encode_record(one)) - bookie.disk.used_bytes())

    copies.write([], [], everything)
    assert max(ahead) < 1_100_000, "bytes asked for before those before them were written"
    assert len(bookie.content("/a")) == 8000
    copies.write([one], [], everything)
    assert len(bookie.content("/a")) == 8001, "the chain goes on behind the last block"


def test_a_new_directory_gets_everything() -> None:
    bookie = Bookie("/a", "/b")
    bookie.write(StoredLedger(1, KEY))
    bookie.disk.unlink(f"/b/{NAME}")
    copies = StateCopies(Env(disk=bookie.disk), ["/a", "/b"])
    assert copies.load()[1] is None
    copies.write([StoredLedger(2, KEY)], [], lambda: [StoredLedger(1, KEY), StoredLedger(2, KEY)])
    assert (
        bookie.content("/a")
        == bookie.content("/b")
        == {
            1: StoredLedger(1, KEY),
            2: StoredLedger(2, KEY),
        }
    )


def three_blocks() -> tuple[bytes, list[int], list[dict[int, StoredLedger]]]:
    data, chain, ends, after = b"", 0, [0], [dict[int, StoredLedger]()]
    states: dict[int, StoredLedger] = {}
    for ledger_id in (1, 2, 3):
        state = StoredLedger(ledger_id, KEY, ledger_id == 2, ledger_id == 3, b"lac" * ledger_id)
        records = [encode_record(state), encode_deletion(Deletion(77, 5))]
        [(block, chain)] = encode_blocks(records, chain)
        data += block
        states = {**states, ledger_id: state}
        ends.append(len(data))
        after.append(states)
    return data, ends, after


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_noticed(flip: int) -> None:
    good, ends, after = three_blocks()
    for at in range(len(good)):
        data = bytearray(good)
        data[at] ^= flip
        if at < ends[2]:
            with pytest.raises(CorruptStateError):
                decode_states(bytes(data), "/a/x")
        else:
            found = decode_states(bytes(data))
            assert (found.states, found.end, found.is_torn) == (after[2], ends[2], True)


def test_every_cut_is_the_end_of_a_crashed_checkpoint() -> None:
    good, ends, after = three_blocks()
    for end in range(len(good) + 1):
        found = decode_states(good[:end])
        whole = max(i for i, e in enumerate(ends) if e <= end)
        assert found.states == after[whole]
        assert found.is_torn == (end not in ends)


def test_every_zeroed_stretch_is_noticed() -> None:
    good, ends, after = three_blocks()
    for start in range(0, len(good), 8):
        data = bytearray(good)
        data[start : start + 16] = bytes(len(data[start : start + 16]))
        try:
            found = decode_states(bytes(data))
        except CorruptStateError:
            assert start < ends[2]
        else:
            assert found.is_torn or bytes(data) == good
            assert found.states in after


def test_a_lost_block_in_the_middle_is_noticed() -> None:
    good, ends, _ = three_blocks()
    with pytest.raises(CorruptStateError):
        decode_states(good[: ends[1]] + good[ends[2] :] + good[ends[2] :])


def test_a_damaged_copy_is_told_apart_from_a_good_one_and_healed() -> None:
    bookie = Bookie("/a", "/b")
    bookie.write(StoredLedger(1, KEY))
    bookie.write(StoredLedger(2, KEY))
    data = bytearray(bookie.disk.get(f"/a/{NAME}"))
    data[20] ^= 1
    bookie.disk.put(f"/a/{NAME}", bytes(data))
    copies = StateCopies(Env(disk=bookie.disk), ["/a", "/b"])
    damaged, good = copies.load()
    assert isinstance(damaged, CorruptStateError)
    assert damaged.path == f"/a/{NAME}"
    assert isinstance(good, StateFileContent)
    assert good.states == bookie.states
    copies.write([], [], good.states.values)
    assert bookie.content("/a") == bookie.states


def test_a_newer_release_is_refused_in_one_line() -> None:
    from struct import pack

    from google_crc32c import value

    block = pack(">4sii", b"QBST", 2, 0)
    with pytest.raises(CorruptStateError, match="newer release"):
        decode_states(block + pack(">I", value(block)))
