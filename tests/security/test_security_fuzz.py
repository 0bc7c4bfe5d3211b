"""The fuzzer itself: what it sends follows from its seed, and it notices what may not be."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from quorumbook.errors import RemoteProtocolError
from quorumbook.protocol import requests
from quorumbook.protocol.answers import bare_answer, error_answer
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from security.fuzz.conversations import HONEST, STRANGE, conversation
from security.fuzz.frames import Frames
from security.fuzz.strangers import what_is_wrong

SEED = random.SystemRandom().getrandbits(32)


def test_a_conversation_follows_from_seed_and_number_alone() -> None:
    for number in range(200):
        one, same, other = (conversation(s, number, is_gated=True) for s in (7, 7, 8))
        assert one == same
        assert one != other


def test_the_grammar_makes_every_request_there_is_and_errs_only_when_it_is_to() -> None:
    frames = Frames(random.Random(SEED), STRANGE, HONEST)
    found: Counter[type] = Counter()
    for version in (2, 3) * 2000:
        found.update(type(each) for each in RequestDecoder().feed(frames.any(version)))
    single = {
        each
        for each in vars(requests).values()
        if isinstance(each, type) and issubclass(each, requests.Request) and each.__slots__
    }
    # A base class is no request.
    assert set(found) >= single - {requests.Request, requests._OfLedger, requests.ReadRun}
    frames.errs = True
    with pytest.raises(RemoteProtocolError):
        for _ in range(1000):
            RequestDecoder().feed(frames.any(3))


def test_what_a_gate_lets_through_and_what_is_no_answer_is_noticed() -> None:
    read, list_entries = requests.Read(2, 2, 7, 0), requests.ListEntries(9, 7)
    refused = [
        error_answer(read, Status.UNAUTHORIZED),
        bare_answer(list_entries, Status.UNAUTHORIZED),
        v2.encode_auth("plugin", b""),
        # Of a request that said version 10, which looks like the first byte of a v3 message.
        error_answer(requests.Read(2, 10, 7, 0), Status.UNAUTHORIZED),
    ]
    for answer in refused:
        assert what_is_wrong(answer, is_stranger_at_gate=True) == ""
    found = v2.encode_read_answer(7, 0, 0, b"entry")
    allowed = v3.Response()
    allowed.header.version, allowed.header.operation, allowed.header.txnId = 3, 10, 1
    allowed.status = allowed.forceLedgerResponse.status = 0
    allowed.forceLedgerResponse.ledgerId = 7
    body = allowed.SerializeToString()
    looked = bare_answer(list_entries, Status.NO_LEDGER)
    for answer in (found, looked, len(body).to_bytes(4, "big") + body):
        assert what_is_wrong(answer, is_stranger_at_gate=False) == ""
        assert "was not refused" in what_is_wrong(answer, is_stranger_at_gate=True)
    for nothing in (b"\0\0\0\1\2", b"\0\0\0\5\x0aabcd", b"\0\0\0\x06GET / "):
        assert what_is_wrong(nothing, is_stranger_at_gate=False)
