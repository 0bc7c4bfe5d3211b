"""Single frames of v2 and v3, right and wrong, drawn by a seed's dice; no connection is made.

``Frames`` knows the grammar: every request that there is, with ids, keys, flags and sizes from
values that hurt.  ``mutated`` knows none: it spoils bytes of what it is given.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from doubles.records import entry, lac_packet
from quorumbook.protocol.digest import master_key
from quorumbook.protocol.frames import frame
from quorumbook.protocol.requests import Operation
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

#: Numbers where code goes wrong.
EDGES = (
    0, 1, -1, 2, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53,
    2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
KEY, ANOTHER_KEY = master_key(b"stranger"), master_key(b"guess")
KEYS = (KEY, KEY, KEY, ANOTHER_KEY, bytes(20))
PLUGINS = ("QuorumbookSharedSecret", "BookieAuthZFactory", "AuthDisabledPlugin", "", "x" * 5000)
SIZES = (0, 1, 20, 100, 1000, 10_000, 100_000)
_NOT_IN_V3 = [
    Operation.RANGE_READ_ENTRY,
    Operation.RANGE_ADD_ENTRY,
    Operation.BATCH_READ_ENTRY,
]
#: How often each is drawn.
_SIZE_WEIGHTS = (5, 5, 10, 40, 20, 3, 1)


class Frames:
    """Draws frames about a stranger's own ledgers, and now and then about somebody else's.

    Attributes:
        dice: All chance comes from them.
        ledger_ids: Of strangers.
        others: Ledgers that are not theirs, whose key they do not have.
        errs: Whether some frames are none by the grammar: nothing in one chunk with such a frame
            is carried out.
    """

    def __init__(self, dice: random.Random, ledger_ids: range, others: range) -> None:
        self.dice = dice
        self.ledger_ids = ledger_ids
        self.others = others
        self.errs = False
        self._makers: dict[int, list[Callable[[], bytes]]] = {
            2: [self.v2_add, self.v2_add, self.v2_read, self.v2_read, self.v2_batch, self.v2_auth],
            3: [
                self.v3_add, self.v3_add, self.v3_read, self.v3_read, self.v3_poll, self.v3_fence,
                self.v3_write_lac, self.v3_read_lac, self.v3_list, self.v3_force, self.v3_info,
                self.v3_auth, self.v3_tls, self.v3_odd,
            ],
        }  # fmt: skip

    def any(self, version: int) -> bytes:
        """Return one frame of a protocol."""
        return self.dice.choice(self._makers[version])()

    # What requests are made of

    def ledger_id(self) -> int:
        """A stranger's ledger, mostly; or another's, or a number that is none."""
        chance = self.dice.random()
        if chance < 0.85:
            return self.dice.choice(self.ledger_ids)
        if chance < 0.95:
            return self.dice.choice(self.others)
        return self.odd_ledger_id()

    def odd_ledger_id(self) -> int:
        """A number that no ledger here has, or is none at all."""
        return self.dice.choice((-1, -(2**63), 2**63 - 1, 2**62, -5))

    def number(self) -> int:
        """An entry id, count or size."""
        if self.dice.random() < 0.8:
            return self.dice.randrange(200)
        return self.dice.choice(EDGES)

    def _key_for(self, ledger_id: int) -> bytes:
        return self.dice.choice(KEYS[3:] if ledger_id in self.others else KEYS)

    def _entry(self, ledger_id: int) -> bytes:
        size = self.dice.choices(SIZES, _SIZE_WEIGHTS)[0]
        entry_id = self.number()
        body = entry(ledger_id, entry_id, bytes(size), self.number())
        if self.errs and self.dice.random() < 0.05:
            body = body[: self.dice.randrange(len(body))]
        return body

    def _forgets(self) -> bool:
        return self.errs and self.dice.random() < 0.1

    def _transaction(self) -> int:
        return self.dice.choice((self.dice.getrandbits(16), self.dice.getrandbits(63), 0))

    # v2

    def _header(self, opcode: int, flags: int = 0) -> bytes:
        version = self.dice.choices((2, 1, 0, 3, 255), (90, 4, 2, 2, 2))[0]
        return v2.packet_header(version, opcode, flags).to_bytes(4, "big")

    def v2_add(self) -> bytes:
        """An add, sometimes of a recovery, sometimes with bits nobody knows."""
        ledger_id = self.ledger_id()
        flags = self.dice.choice((0, 0, 0, 0, 2, 4, 6, 1, 0xFFFF))
        key = self._key_for(ledger_id)
        return frame(self._header(v2.ADD, flags) + key + self._entry(ledger_id))

    def v2_read(self) -> bytes:
        """A read, sometimes one that fences, with or without a key."""
        ledger_id = self.ledger_id()
        flags = self.dice.choice((0, 0, 0, 1, 1, 4, 5, 8))
        tail = self._key_for(ledger_id) if flags & 1 and not self._forgets() else b""
        ids = struct.pack(">qq", ledger_id, self.number())
        return frame(self._header(v2.READ, flags) + ids + tail)

    def v2_batch(self) -> bytes:
        """A batch read."""
        ledger_id = self.ledger_id()
        flags = self.dice.choice((0, 0, 0, 1, 4))
        count = max(-(2**31), min(2**31 - 1, self.number()))
        body = struct.pack(
            ">qqqiq", ledger_id, self.number(), self._transaction(), count,
            self.dice.choice((0, 1, 1000, 1 << 20, 5 << 20, *EDGES)),
        )  # fmt: skip
        tail = self._key_for(ledger_id) if flags & 1 and not self._forgets() else b""
        return frame(self._header(v2.BATCH_READ, flags) + body + tail)

    def v2_auth(self) -> bytes:
        """A step of authentication that proves nothing."""
        return v2.encode_auth(self.dice.choice(PLUGINS), self.proof())

    def proof(self) -> bytes:
        """What a stranger may say in place of a proof."""
        hello = b"\x01\x06writer" + self.dice.randbytes(32)
        return self.dice.choice(
            (b"", hello, hello[:-1], self.dice.randbytes(32), b"\xff" * 3000, b"\x01\xff")
        )

    # v3

    def v3_add(self) -> bytes:
        """An add; the ids beside the entry need not be those in it."""
        ledger_id = self.ledger_id()
        dice = self.dice
        return v3.encode_add(
            self._transaction(), ledger_id, self.number(), self._key_for(ledger_id),
            self._entry(ledger_id), is_recovery=dice.random() < 0.1,
            is_high_priority=dice.random() < 0.1, is_deferred_sync=dice.random() < 0.1,
        )  # fmt: skip

    def v3_read(self) -> bytes:
        """A plain read."""
        return v3.encode_read(
            self._transaction(), self.ledger_id(), self.number(),
            is_high_priority=self.dice.random() < 0.1,
        )  # fmt: skip

    def v3_poll(self) -> bytes:
        """A long poll, with and without the entry, with strange times."""
        return v3.encode_read(
            self._transaction(), self.ledger_id(), self.dice.choice((-1, 0, 5)),
            previous_lac=self.number(), is_piggyback=self.dice.random() < 0.5,
            timeout_ms=self.dice.choice((None, 0, 1, 50, 500, -1, 2**63 - 1)),
        )  # fmt: skip

    def v3_fence(self) -> bytes:
        """A read that fences."""
        ledger_id = self.ledger_id()
        return v3.encode_read(
            self._transaction(), ledger_id, self.number(), master_key=self._key_for(ledger_id)
        )

    def v3_write_lac(self) -> bytes:
        """An explicit last add confirmed, right, wrong or far too large."""
        ledger_id = self.ledger_id()
        lac = self.number()
        packet = self.dice.choice(
            (lac_packet(ledger_id, lac), lac_packet(ledger_id, lac)[:9], b"", bytes(2000))
        )
        key = self._key_for(ledger_id)
        return v3.encode_write_lac(self._transaction(), ledger_id, lac, key, packet)

    def v3_read_lac(self) -> bytes:
        """A question for the last add confirmed."""
        return v3.encode_read_lac(self._transaction(), self.ledger_id())

    def v3_list(self) -> bytes:
        """A question for the list of entries."""
        return v3.encode_list_entries(self._transaction(), self.ledger_id())

    def v3_force(self) -> bytes:
        """A force."""
        return v3.encode_force(self._transaction(), self.ledger_id())

    def v3_info(self) -> bytes:
        """A question for disk space."""
        return v3.encode_bookie_info(self._transaction(), self.number())

    def v3_auth(self) -> bytes:
        """A step of authentication that proves nothing."""
        return v3.encode_auth(self._transaction(), self.dice.choice(PLUGINS), self.proof())

    def v3_tls(self) -> bytes:
        """A request for TLS, in the middle of anything."""
        return v3.encode_start_tls(self._transaction())

    def v3_odd(self) -> bytes:
        """A request whose parts do not belong together, or that v3 does not have."""
        request = v3.Request()
        request.header.version = self.dice.choice((1, 2, 3, 3, 3))
        operations = list(Operation) if self.errs else _NOT_IN_V3
        request.header.operation = int(self.dice.choice(operations))
        request.header.txnId = self._transaction()
        if self.dice.random() < 0.5:
            request.readRequest.ledgerId = self.ledger_id()
            request.readRequest.entryId = self.number()
        if self.dice.random() < 0.5:
            request.readLacRequest.ledgerId = self.ledger_id()
        for _ in range(self.dice.choice((0, 0, 1, 50))):
            pair = request.requestContext.add()
            pair.key, pair.value = "key", "v" * self.dice.randrange(50)
        return frame(request.SerializeToString())


def mutated(dice: random.Random, data: bytes) -> bytes:
    """Spoil some bytes, in one to four ways."""
    spoilt = bytearray(data)
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(spoilt) + 1)
        way = dice.randrange(8)
        if way == 0 and at < len(spoilt):
            spoilt[at] ^= 1 << dice.randrange(8)
        elif way == 1:
            spoilt[at : at + 1] = dice.randbytes(dice.randrange(1, 9))
        elif way == 2:
            del spoilt[at : at + dice.randrange(1, 20)]
        elif way == 3:
            spoilt[at:at] = spoilt[: dice.randrange(1, 60)]
        elif way == 4 and len(spoilt) >= 4:
            length = dice.choice((0, 1, 4, 7, 8, 19, 20, len(spoilt), 5 << 20, *EDGES))
            spoilt[:4] = (length & 0xFFFFFFFF).to_bytes(4, "big")
        elif way == 5:
            spoilt[at : at + 8] = (dice.choice(EDGES) & (2**64 - 1)).to_bytes(8, "big")
        elif way == 6:
            del spoilt[at:]
        else:
            # A varint that is longer than any number.
            spoilt[at:at] = b"\xff" * dice.randrange(1, 15)
    return bytes(spoilt)


def mutated_inside(dice: random.Random, data: bytes) -> bytes:
    """Spoil bytes of one frame whose length still fits it, so that those behind it are read."""
    return frame(mutated(dice, data[4:]) or b"\0")
