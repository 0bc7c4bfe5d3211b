"""Entries as bookies keep them, their digests, and the keys of a ledger.

    entry                           explicit last-add-confirmed packet
    offset  size  field             offset  size  field
         0     8  ledger id              0     8  ledger id
         8     8  entry id               8     8  last add confirmed
        16     8  last add confirmed    16     m  digest over bytes 0 to 15
        24     8  length
        32     m  digest
      32+m     n  payload

``length`` counts all payload bytes of the ledger up to and with this entry.  The digest covers
the 32 header bytes and the payload.  m is 8 for CRC32 (the upper four are zero), 20 for HMAC
(SHA-1), 4 for CRC32C, 0 for DUMMY.

Bookies never look at digests; clients verify each entry they read.  Entries are sealed and
verified in batches by loops that run in C as far as they can: ``map`` over columns instead of a
step of Python for each field.
"""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from hashlib import sha1
from itertools import accumulate, chain, count, pairwise, repeat
from struct import Struct
from typing import NamedTuple, TypeAlias

import google_crc32c
from zlib_ng.zlib_ng import crc32

from quorumbook.errors import DigestMismatchError
from quorumbook.ids import EntryId, LedgerId

HEADER_SIZE_BYTES = 32
LAC_HEADER_SIZE_BYTES = 16

_HEADER = Struct(">qqqq")
_IDS = Struct(">qq")
_HEADER_IDS = Struct(">qq16x")
_SIZE = Struct(">i")
_CRC32 = Struct(">Q")
_CRC32C = Struct(">I")

_pack_header = _HEADER.pack
_pack_ids = _IDS.pack
_pack_crc32c = _CRC32C.pack
_crc32c = google_crc32c.value
_extend_crc32c = google_crc32c.extend
_join = b"".join


#: Headers, digests and payloads of entries.
_Rows: TypeAlias = tuple[list[bytes], list[int | bytes], list[bytes]]
_ROWS_AT_ONCE = 32


class EntryMarks(NamedTuple):
    """What entries say of the ledger, by entry."""

    last_adds_confirmed: tuple[EntryId, ...]
    lengths: tuple[int, ...]


class DigestType(IntEnum):
    """How a ledger's entries are sealed, with the numbers of the ledger metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


def master_key(password: bytes) -> bytes:
    """Return the key that bookies compare, whatever the digest type."""
    return sha1(b"ledger" + password).digest()


def mac_key(password: bytes) -> bytes:
    """Return the key of HMAC digests."""
    return sha1(b"mac" + password).digest()


def entry_header(entry: bytes) -> tuple[LedgerId, EntryId, EntryId, int]:
    """Return ledger id, entry id, last add confirmed and length of an entry."""
    if len(entry) < HEADER_SIZE_BYTES:
        raise DigestMismatchError(f"an entry of {len(entry)} bytes has no whole header")
    header: tuple[int, int, int, int] = _HEADER.unpack_from(entry)
    return header


def entry_marks(data: bytes, payload_sizes: Sequence[int], payload_offset: int) -> EntryMarks:
    """Return last add confirmed and length of entries that were verified.

    Args:
        data: The entries, each behind its 4-byte size.
        payload_sizes: How long each one's payload is.
        payload_offset: Where payloads begin in entries.
    """
    head = 4 + payload_offset
    if payload_sizes.count(payload_sizes[0]) == len(payload_sizes):
        rest = payload_sizes[0] + payload_offset - HEADER_SIZE_BYTES
        rows = Struct(f">20xqq{rest}x").iter_unpack(data)
    else:
        starts = accumulate((head + size for size in payload_sizes[:-1]), initial=20)
        rows = map(_IDS.unpack_from, repeat(data), starts)
    found = tuple(chain.from_iterable(rows))
    return EntryMarks(found[0::2], found[1::2])


def entries_in(data: bytes) -> int:
    """Return how many whole entries, each behind its 4-byte size, there are; not verified."""
    if len(data) < 4:
        return 0
    step = 4 + _SIZE.unpack_from(data)[0]
    count, rest = divmod(len(data), step) if step > 4 else (0, 1)
    if not rest and all(data[at::step] == data[at : at + 1] * count for at in range(4)):
        return count
    count = position = 0
    while len(data) - position >= 4:
        size = _SIZE.unpack_from(data, position)[0]
        position += 4 + size
        if size <= 0 or position > len(data):
            break
        count += 1
    return count


class Digester(ABC):
    """Seals and verifies the entries of a ledger; made by ``digester``."""

    size_bytes: int
    #: The digest as it stands in an entry: a number, or bytes.
    _field: Struct

    @abstractmethod
    def _digest(self, header: bytes, payload: bytes) -> bytes:
        """Return the digest over header and payload."""

    @property
    def payload_offset(self) -> int:
        """Where the payload begins in an entry."""
        return HEADER_SIZE_BYTES + self.size_bytes

    def seal(
        self, ledger_id: LedgerId, entry_id: EntryId, lac: EntryId, length: int, payload: bytes
    ) -> bytes:
        """Return the whole entry."""
        header = _pack_header(ledger_id, entry_id, lac, length)
        return _join((header, self._digest(header, payload), payload))

    def verify(self, entry: bytes, ledger_id: LedgerId, entry_id: EntryId | None) -> None:
        """Check that the bytes are the entry that was asked for.

        Args:
            entry: What a bookie answered.
            ledger_id: The ledger that was read.
            entry_id: The entry that was read; None if the last one was asked for.

        Raises:
            DigestMismatchError: they are not; try the next replica.
        """
        offset = HEADER_SIZE_BYTES + self.size_bytes
        if len(entry) < offset:
            raise _mismatch("is too short", ledger_id, entry_id)
        if entry[HEADER_SIZE_BYTES:offset] != self._digest(
            entry[:HEADER_SIZE_BYTES], entry[offset:]
        ):
            raise _mismatch("does not match its digest", ledger_id, entry_id)
        found_ledger_id, found_entry_id = _IDS.unpack_from(entry)
        if found_ledger_id != ledger_id:
            raise _mismatch(f"is of ledger {found_ledger_id}", ledger_id, entry_id)
        if entry_id is not None and found_entry_id != entry_id:
            raise _mismatch(f"is entry {found_entry_id}", ledger_id, entry_id)

    def payload(self, entry: bytes) -> bytes:
        """Return an entry's payload; verify the entry first."""
        return entry[HEADER_SIZE_BYTES + self.size_bytes :]

    def digest_columns(
        self, headers: Sequence[bytes], payloads: Sequence[bytes]
    ) -> Iterator[bytes]:
        """Yield the digest of each pair of header and payload."""
        return map(self._digest, headers, payloads)

    def _values(self, headers: Sequence[bytes], payloads: Sequence[bytes]) -> Iterator[int | bytes]:
        """Yield the same as ``_field`` unpacks it."""
        return self.digest_columns(headers, payloads)

    def seal_many(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        lac: EntryId,
        length: int,
        payloads: Sequence[bytes],
    ) -> tuple[list[bytes], int]:
        """Seal consecutive entries that go out together.

        Args:
            ledger_id: The ledger.
            first_entry_id: The id of the first payload.
            lac: Last add confirmed, the same for all of them.
            length: The ledger's length before the first payload.
            payloads: What to seal.

        Returns:
            The entries, and the ledger's length after the last.
        """
        headers, new_length = seal_headers(ledger_id, first_entry_id, lac, length, payloads)
        digests = self.digest_columns(headers, payloads)
        return list(map(_join, zip(headers, digests, payloads, strict=True))), new_length

    def open_run(
        self,
        data: bytes,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        entry_count: int | None = None,
    ) -> list[bytes]:
        """Verify consecutive entries, each behind its 4-byte size, and return their payloads.

        Args:
            data: What a batch read answered, ``EntryRun.data``.
            ledger_id: The ledger that was read.
            first_entry_id: The entry the batch must begin with.
            entry_count: Verify so many, whatever follows; None: exactly all that is there.

        Raises:
            DigestMismatchError: with ``entry_id``, the first that is not what it should be; the
                entries before it are good and come out with a smaller ``entry_count``.
        """
        rows = _uniform_rows(data, self._field, entry_count) or self._rows(data, entry_count)
        if rows is not None:
            headers, digests, payloads = rows
            ids = range(first_entry_id, first_entry_id + len(headers))
            found = list(chain.from_iterable(_HEADER_IDS.iter_unpack(_join(headers))))
            if (
                found[0::2].count(ledger_id) == len(ids)
                and found[1::2] == list(ids)
                and list(self._values(headers, payloads)) == digests
            ):
                return payloads
        return self._open_one_by_one(data, ledger_id, first_entry_id, entry_count)

    def _rows(self, data: bytes, entry_count: int | None) -> _Rows | None:
        """Cut entries of any sizes up; None if they are not whole, or not so many."""
        starts: list[int] = []
        position, end = 0, len(data)
        least, most = self.payload_offset, -1 if entry_count is None else entry_count
        while position < end and len(starts) != most:
            starts.append(position)
            size = _SIZE.unpack_from(data, position)[0] if end - position >= 4 else 0
            position += 4 + size
            if size < least or position > end:
                return None
        if entry_count is not None and len(starts) != entry_count:
            return None
        head, body = 4 + HEADER_SIZE_BYTES, 4 + least
        found = map(self._field.unpack_from, repeat(data), [start + head for start in starts])
        return (
            [data[start + 4 : start + head] for start in starts],
            list(chain.from_iterable(found)),
            [data[start + body : stop] for start, stop in pairwise([*starts, position])],
        )

    def verify_run(
        self,
        data: bytes,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        entry_count: int | None = None,
    ) -> list[tuple[int, int]]:
        """Verify like ``open_run`` and return where each payload starts and ends in ``data``."""
        payloads = self.open_run(data, ledger_id, first_entry_id, entry_count)
        if not payloads:
            return []
        sizes = list(map(len, payloads))
        start = 4 + self.payload_offset
        if sizes.count(sizes[0]) == len(sizes):
            step = start + sizes[0]
            starts = range(start, start + len(sizes) * step, step)
            return list(zip(starts, range(step, step + len(sizes) * step, step), strict=True))
        ends = list(accumulate(size + start for size in sizes))
        return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]

    def _open_one_by_one(
        self,
        data: bytes,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        entry_count: int | None,
    ) -> list[bytes]:
        payloads: list[bytes] = []
        position, end = 0, len(data)
        while len(payloads) != entry_count and (position < end or entry_count is not None):
            entry_id = first_entry_id + len(payloads)
            if end - position < 4:
                raise _mismatch("is not there: the bytes end", ledger_id, entry_id)
            stop = position + 4 + _SIZE.unpack_from(data, position)[0]
            if not position + 4 <= stop <= end:
                raise _mismatch("has an impossible size", ledger_id, entry_id)
            entry = data[position + 4 : stop]
            self.verify(entry, ledger_id, entry_id)
            payloads.append(entry[self.payload_offset :])
            position = stop
        return payloads

    def lac_packet(self, ledger_id: LedgerId, lac: EntryId) -> bytes:
        """Return an explicit last-add-confirmed packet."""
        header = _pack_ids(ledger_id, lac)
        return header + self._digest(header, b"")

    def parse_lac_packet(self, packet: bytes, ledger_id: LedgerId) -> EntryId:
        """Verify an explicit last-add-confirmed packet and return what it says."""
        if len(packet) < LAC_HEADER_SIZE_BYTES + self.size_bytes:
            raise _mismatch("(explicit last add confirmed) is too short", ledger_id, None)
        header = packet[:LAC_HEADER_SIZE_BYTES]
        if packet[LAC_HEADER_SIZE_BYTES:][: self.size_bytes] != self._digest(header, b""):
            raise _mismatch(
                "(explicit last add confirmed) does not match its digest", ledger_id, None
            )
        found_ledger_id, lac = _IDS.unpack(header)
        if found_ledger_id != ledger_id:
            raise _mismatch(
                f"(explicit last add confirmed) is of ledger {found_ledger_id}", ledger_id, None
            )
        return int(lac)


class _Crc32Digester(Digester):
    size_bytes = 8
    _field = _CRC32

    def _digest(self, header: bytes, payload: bytes) -> bytes:
        return _CRC32.pack(crc32(payload, crc32(header)))

    def digest_columns(
        self, headers: Sequence[bytes], payloads: Sequence[bytes]
    ) -> Iterator[bytes]:
        return map(_CRC32.pack, self._values(headers, payloads))

    def _values(self, headers: Sequence[bytes], payloads: Sequence[bytes]) -> Iterator[int]:
        return map(crc32, payloads, map(crc32, headers))


class _HmacDigester(Digester):
    size_bytes = 20
    _field = Struct("20s")

    def __init__(self, password: bytes) -> None:
        self._keyed = hmac.new(mac_key(password), digestmod=sha1)

    def _digest(self, header: bytes, payload: bytes) -> bytes:
        mac = self._keyed.copy()
        mac.update(header)
        mac.update(payload)
        return mac.digest()


class _Crc32cDigester(Digester):
    size_bytes = 4
    _field = _CRC32C

    def _digest(self, header: bytes, payload: bytes) -> bytes:
        return _pack_crc32c(_extend_crc32c(_crc32c(header), payload))

    def digest_columns(
        self, headers: Sequence[bytes], payloads: Sequence[bytes]
    ) -> Iterator[bytes]:
        return map(_pack_crc32c, self._values(headers, payloads))

    def _values(self, headers: Sequence[bytes], payloads: Sequence[bytes]) -> Iterator[int]:
        return map(_extend_crc32c, map(_crc32c, headers), payloads)


class _DummyDigester(Digester):
    size_bytes = 0
    _field = Struct("0s")

    def _digest(self, header: bytes, payload: bytes) -> bytes:
        return b""


def digester(digest_type: DigestType, password: bytes) -> Digester:
    """Return what seals and verifies the entries of a ledger."""
    if digest_type == DigestType.HMAC:
        return _HmacDigester(password)
    if digest_type == DigestType.CRC32C:
        return _Crc32cDigester()
    if digest_type == DigestType.CRC32:
        return _Crc32Digester()
    return _DummyDigester()


def seal_headers(
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    lac: EntryId,
    length: int,
    payloads: Sequence[bytes],
) -> tuple[list[bytes], int]:
    """Return the 32 header bytes of each payload, and the ledger's length after the last."""
    lengths = list(accumulate(map(len, payloads), initial=length))
    new_length = lengths[-1]
    headers = map(_pack_header, repeat(ledger_id), count(first_entry_id), repeat(lac), lengths[1:])
    return list(headers), new_length


def _uniform_rows(data: bytes, field: Struct, entry_count: int | None) -> _Rows | None:
    """Cut entries up that are all as long as the first; None if they are not, or not so many."""
    if len(data) < 4:
        return None
    size = _SIZE.unpack_from(data)[0]
    if size < HEADER_SIZE_BYTES + field.size:
        return None
    fitting, rest = divmod(len(data), size + 4)
    count = (0 if rest else fitting) if entry_count is None else entry_count
    if not 0 < count <= fitting:
        return None
    rows = memoryview(data)[: count * (size + 4)]
    one, many = _row_structs(size, field)
    in_blocks = len(rows) // many.size * many.size
    # A tuple for each entry would set the garbage collector going.
    found = list(chain.from_iterable(many.iter_unpack(rows[:in_blocks])))
    found += chain.from_iterable(one.iter_unpack(rows[in_blocks:]))
    if found[0::4].count(size) != count:
        return None
    return found[1::4], found[2::4], found[3::4]


@lru_cache(maxsize=256)
def _row_structs(size: int, field: Struct) -> tuple[Struct, Struct]:
    """Return the structs of one entry and of many: size, header, digest, payload of each."""
    payload_size = size - HEADER_SIZE_BYTES - field.size
    row = f"i{HEADER_SIZE_BYTES}s{field.format.lstrip('>')}{payload_size}s"
    return Struct(">" + row), Struct(">" + row * _ROWS_AT_ONCE)


def _mismatch(what: str, ledger_id: LedgerId, entry_id: EntryId | None) -> DigestMismatchError:
    name = "entry" if entry_id is None else f"entry {entry_id}"
    return DigestMismatchError(
        f"{name} of ledger {ledger_id} {what}", ledger_id=ledger_id, entry_id=entry_id
    )
