"""What one stranger does on one connection: a list of steps, drawn by a seed and a number.

The same seed and number give the same conversation, so a finding can be played again alone.
``strangers.py`` plays them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from doubles.records import entry
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from security.fuzz.frames import KEY, Frames, mutated, mutated_inside

#: Ids of strangers' ledgers, and of ledgers of those who know the secret.
STRANGE = range(0x5A5A_5A5A << 24, (0x5A5A_5A5A << 24) + 256)
INSIDE = range(0x6B6B_6B6B << 24, (0x6B6B_6B6B << 24) + 256)
#: Ids of the honest writer's ledgers; strangers know them, but not their key.
HONEST = range(4)


class Step(NamedTuple):
    """One thing to do: ``send`` bytes, ``trickle`` them, ``tls``, ``log in``, ``wait``, ``cut``.

    ``frames`` is how many frames are in the bytes, whole or not.
    """

    do: str
    data: bytes = b""
    frames: int = 0
    seconds: float = 0.0


@dataclass
class Conversation:
    """The steps of one connection; ``is_reading`` tells whether answers are taken."""

    kind: str
    steps: list[Step]
    is_reading: bool = True
    #: Whether it logs in, and so may do what it likes with ledgers of its own.
    is_inside: bool = False
    #: Which operations its frames ask for is up to its kind; this counts frames.
    frames: int = field(init=False)

    def __post_init__(self) -> None:
        self.frames = sum(step.frames for step in self.steps)


def conversation(seed: int, number: int, *, is_gated: bool) -> Conversation:
    """Return the conversation of a number.

    Args:
        seed: Of the run.
        number: Which.
        is_gated: Whether the bookie demands TLS and authentication.
    """
    dice = random.Random(f"{seed}:{number}")
    is_inside = is_gated and dice.random() < 0.3
    frames = Frames(dice, INSIDE if is_inside else STRANGE, HONEST)
    kinds = [kind for kind in KINDS if is_gated or kind not in ("handshake over TLS",)]
    kind = dice.choices(kinds, [KINDS[kind][1] for kind in kinds])[0]
    if number < 2 * len(kinds):
        # However little time there is, nothing is left out.
        kind = kinds[number % len(kinds)]
    made = KINDS[kind][0](frames)
    made.kind = kind
    if is_gated and kind not in ("handshake", "handshake over TLS"):
        # Strangers try with and without TLS in front; who is inside needs both.
        begin = [Step("tls"), Step("log in")] if is_inside else [Step("tls")]
        if is_inside or dice.random() < 0.4:
            made.steps[:0] = begin
        made.is_inside = is_inside
    return made


def _joined(parts: list[bytes]) -> Step:
    return Step("send", b"".join(parts), len(parts))


def _requests(frames: Frames) -> Conversation:
    """Requests as the grammar has them, of one protocol or of both in turn."""
    dice = frames.dice
    frames.errs = dice.random() < 0.1
    versions = dice.choice(((2,), (3,), (3,), (3, 2), (2, 3)))
    steps = []
    for version in versions:
        for _ in range(dice.randrange(1, 6)):
            count = dice.choice((1, 5, 30, 100))
            steps.append(_joined([frames.any(version) for _ in range(count)]))
            steps.append(Step("wait", seconds=dice.choice((0, 0, 0.005))))
    return Conversation("", steps)


def _mutated(frames: Frames) -> Conversation:
    """Frames with spoilt bytes; some keep their length, so that the connection goes on."""
    dice = frames.dice
    version = dice.choice((2, 3))
    spoil = dice.choice((mutated, mutated_inside))
    frames.errs = True
    steps = []
    # Nothing of a chunk with a bad frame is carried out, so chunks are small.
    for _ in range(dice.choice((1, 5, 20))):
        parts = [frames.any(version) for _ in range(dice.randrange(1, 5))]
        steps.append(_joined([spoil(dice, p) if dice.random() < 0.4 else p for p in parts]))
        steps.append(Step("wait", seconds=0.002))
    return Conversation("", steps)


def _half_frames(frames: Frames) -> Conversation:
    """A frame that is begun and never ended, in one piece or byte by byte."""
    dice = frames.dice
    whole = frames.any(dice.choice((2, 3)))
    cut = whole[: dice.randrange(1, len(whole) + 1)]
    head = dice.choice((b"", (4 << 20).to_bytes(4, "big") + bytes(dice.choice((0, 100_000)))))
    steps = [Step("trickle", cut, 1)] if dice.random() < 0.2 else [Step("send", head or cut, 1)]
    return Conversation("", [*steps, Step("wait", seconds=dice.choice((0, 0.05, 0.5)))])


def _lists(frames: Frames) -> Conversation:
    """A ledger of many runs, and its list many times."""
    dice = frames.dice
    ledger_id = dice.choice(frames.ledger_ids)
    first, step = dice.randrange(10**6), dice.choice((1, 2, 7))
    ids = range(first, first + step * dice.choice((100, 3000)), step)
    adds = v2.encode_adds(KEY, 0, [entry(ledger_id, i, b"x") for i in ids])
    if dice.random() < 0.5:
        return Conversation("", [_joined(adds)])
    lists = [v3.encode_list_entries(i, ledger_id) for i in range(dice.choice((10, 300)))]
    return Conversation("", [_joined(lists)], is_reading=dice.random() < 0.7)


def _long_polls(frames: Frames) -> Conversation:
    """Many long polls that wait, for ledgers that are there or not."""
    dice = frames.dice
    ledger_id = frames.ledger_id()
    polls = [
        v3.encode_read(i, ledger_id, -1, previous_lac=2**40, timeout_ms=dice.choice((100, 10_000)))
        for i in range(dice.choice((10, 500, 2000)))
    ]
    return Conversation("", [_joined(polls), Step("wait", seconds=dice.choice((0, 0.1, 0.5)))])


def _last_adds(frames: Frames) -> Conversation:
    """Explicit last adds confirmed, of all sizes, of one ledger or of all."""
    parts = [frames.v3_write_lac() for _ in range(frames.dice.choice((10, 300)))]
    return Conversation("", [_joined(parts)])


def _fences(frames: Frames) -> Conversation:
    """Fences of ledgers that nobody knows."""
    parts = [frames.v3_fence() for _ in range(frames.dice.choice((10, 300)))]
    return Conversation("", [_joined(parts)])


def _silent_reader(frames: Frames) -> Conversation:
    """Reads of much, whose answers are not taken."""
    dice = frames.dice
    ledger_id = dice.choice(frames.ledger_ids)
    version = dice.choice((2, 3))
    large = entry(ledger_id, 0, bytes(100_000))
    count = dice.choice((20, 500, 2000))
    if version == 2:
        adds = v2.encode_adds(KEY, 0, [large])
        reads = [v2.encode_batch_read(ledger_id, 0, i, 100, 5 << 20) for i in range(count)]
    else:
        adds = [v3.encode_add(1, ledger_id, 0, KEY, large)]
        reads = [v3.encode_read(i, ledger_id, 0) for i in range(count)]
        reads += [v3.encode_read_lac(i, ledger_id) for i in range(count // 4)]
    steps = [_joined([*adds, *reads]), Step("wait", seconds=dice.choice((0.1, 0.5, 1.0)))]
    return Conversation("", steps, is_reading=False)


def _reads_in_a_row(frames: Frames) -> Conversation:
    """Rows of plain reads, the cheapest frames that there are."""
    dice = frames.dice
    ledger_id = frames.ledger_id()
    count, first = dice.choice((100, 1000)), dice.randrange(100)
    if dice.random() < 0.5:
        ids = range(first, first + count)
        return Conversation("", [Step("send", v2.encode_reads(ledger_id, ids), count)])
    return Conversation("", [_joined([v3.encode_read(i, ledger_id, i) for i in range(count)])])


def _handshake(frames: Frames) -> Conversation:
    """START_TLS and AUTH in every wrong way, in the clear."""
    dice = frames.dice
    tls, version = frames.v3_tls(), dice.choice((2, 3))
    auths = [frames.any(version) if dice.random() < 0.3 else (
        frames.v2_auth() if version == 2 else frames.v3_auth()) for _ in range(dice.randrange(1, 9))
    ]  # fmt: skip
    hello = b"\x16\x03\x01" + dice.choice((b"\x00\x05", b"\xff\xff")) + dice.randbytes(300)
    wait = Step("wait", seconds=dice.choice((0, 0.01, 0.2)))
    return Conversation("", dice.choice((
        [_joined([tls, *auths])],
        [_joined([tls]), wait, Step("send", hello, 1), wait],
        [_joined([tls]), wait, Step("send", dice.randbytes(2000), 1), wait],
        [_joined([tls]), wait, _joined(auths), wait],
        [Step("send", hello, 1), wait],
        [Step("send", b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n", 1), wait],
        [_joined(auths), wait, _joined([tls] * dice.randrange(1, 20)), wait],
        [_joined([tls]), wait, Step("cut")],
        [wait],
    )))  # fmt: skip


def _handshake_over_tls(frames: Frames) -> Conversation:
    """What comes behind a good handshake without a proof: AUTH, TLS again, requests, an end."""
    dice = frames.dice
    auths = [frames.v3_auth() for _ in range(dice.randrange(9))]
    rest = dice.choice((
        [_joined([*auths, frames.v3_tls(), frames.any(3)])],
        [_joined([frames.any(3) for _ in range(20)])],
        [_joined([frames.any(2) for _ in range(20)])],
        [Step("cut")],
        [Step("send", dice.randbytes(500), 1)],
        [Step("wait", seconds=0.2)],
    ))  # fmt: skip
    return Conversation("", [Step("tls"), *rest])


Maker = Callable[[Frames], Conversation]
#: Each kind, and how often it is drawn.
KINDS: dict[str, tuple[Maker, float]] = {
    "requests by the grammar": (_requests, 30),
    "mutated frames": (_mutated, 300),
    "half frames": (_half_frames, 8),
    "lists of entries": (_lists, 3),
    "long polls": (_long_polls, 3),
    "last adds confirmed": (_last_adds, 3),
    "fences": (_fences, 3),
    "silent readers": (_silent_reader, 3),
    "reads in a row": (_reads_in_a_row, 3),
    "handshake": (_handshake, 10),
    "handshake over TLS": (_handshake_over_tls, 10),
}
