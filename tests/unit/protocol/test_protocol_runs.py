"""How adds become runs, and how runs are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quorumbook.errors import RemoteProtocolError
from quorumbook.protocol import requests as rq
from quorumbook.protocol.answers import add_answers, error_answer
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.frames import frame
from quorumbook.protocol.messages import message_class
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

KEY = master_key(b"passwd")
OTHER_KEY = master_key(b"other")
SEALER = digester(DigestType.CRC32C, b"passwd")


def body(ledger_id: int, entry_id: int, size: int = 20) -> bytes:
    return SEALER.seal(ledger_id, entry_id, entry_id - 3, 7, bytes([entry_id & 255]) * size)


def adds(version: int, ids: Sequence[int], ledger_id: int = 5, **options: Any) -> bytes:
    key = options.pop("key", KEY)
    sizes = options.pop("sizes", [20] * len(ids))
    bodies = [body(ledger_id, i, size) for i, size in zip(ids, sizes, strict=True)]
    if version == 2:
        return b"".join(v2.encode_adds(key, options.get("flags", 0), bodies))
    flags = options.get("flags", 0)
    return b"".join(
        v3.encode_add(
            (1000 + i) % (1 << 64),
            ledger_id,
            i,
            key,
            entry,
            is_recovery=bool(flags & v2.RECOVERY_ADD),
            is_high_priority=bool(flags & v2.HIGH_PRIORITY),
        )
        for i, entry in zip(ids, bodies, strict=True)
    )


def runs(data: bytes) -> list[list[int]]:
    found = RequestDecoder().feed(data)
    return [list(request.run.entry_ids()) for request in found if isinstance(request, rq.AddRun)]


both = pytest.mark.parametrize("version", [2, 3])


@both
@pytest.mark.parametrize("count", [1, 2, 3, 4, 11, 12, 13, 44, 300])
def test_consecutive_adds_of_one_size_become_one_uniform_run(version: int, count: int) -> None:
    ids = range(120, 120 + count)
    (request,) = RequestDecoder().feed(adds(version, ids))
    assert isinstance(request, rq.AddRun)
    run = request.run
    assert (run.ledger_id, run.count, list(run.entry_ids())) == (5, count, list(ids))
    assert isinstance(run.sizes, int)
    assert [entry for _, entry in run.entries()] == [body(5, i) for i in ids]
    assert run.last_add_confirmed() == ids[-1] - 3
    assert run.data == EntryRun.of(5, 120, [body(5, i) for i in ids]).data
    assert request.master_key == KEY


@both
def test_adds_of_different_sizes_become_one_run(version: int) -> None:
    ids = range(100)
    sizes = [20] * 30 + [i % 7 for i in range(40)] + [0] * 30
    (request,) = RequestDecoder().feed(adds(version, ids, sizes=sizes))
    assert isinstance(request, rq.AddRun)
    expected = [body(5, i, size) for i, size in zip(ids, sizes, strict=True)]
    assert [entry for _, entry in request.run.entries()] == expected
    assert request.run.data == EntryRun.of(5, 0, expected).data


@both
def test_holes_of_a_striped_ledger_stay_in_one_run(version: int) -> None:
    ids = [i for i in range(400) if i % 3 != 1]
    (request,) = RequestDecoder().feed(adds(version, ids))
    assert isinstance(request, rq.AddRun)
    assert list(request.run.entry_ids()) == ids
    assert request.run.entry(1) is None
    assert [entry for _, entry in request.run.entries()] == [body(5, i) for i in ids]


@both
def test_gaps_below_sixteen_stay_in_the_run_and_wider_ones_do_not(version: int) -> None:
    assert runs(adds(version, [0, 15, 30])) == [[0, 15, 30]]
    assert runs(adds(version, [0, 16, 17])) == [[0], [16, 17]]


@both
@pytest.mark.parametrize("length", [2, 5, 50])
def test_duplicates_and_descending_ids_begin_a_new_run(version: int, length: int) -> None:
    first = list(range(length))
    assert runs(adds(version, [*first, length - 1, length])) == [first, [length - 1, length]]
    assert runs(adds(version, [*first, length - 2])) == [first, [length - 2]]
    assert runs(adds(version, first * 2)) == [first, first]


@both
@pytest.mark.parametrize("length", [1, 3, 40])
def test_another_ledger_key_or_flag_begins_a_new_run(version: int, length: int) -> None:
    ids, more = list(range(length)), list(range(length, 2 * length))
    head = adds(version, ids)
    for tail in (
        adds(version, more, ledger_id=6),
        adds(version, more, key=OTHER_KEY),
        adds(version, more, flags=v2.RECOVERY_ADD),
        adds(version, more, flags=v2.HIGH_PRIORITY),
    ):
        assert runs(head + tail) == [ids, more]
        # and in the middle of what could be one stretch
        end = adds(version, range(2 * length, 3 * length))
        assert len(runs(head + tail + end)) == 3


@both
@pytest.mark.parametrize("at", [1, 5, 12, 20, 39])
def test_one_foreign_add_among_many_of_its_size_is_not_taken_into_the_run(
    version: int, at: int
) -> None:
    before, after = list(range(at)), list(range(at + 1, 60))
    for options in (
        {"ledger_id": 6},
        {"key": OTHER_KEY},
        {"flags": v2.RECOVERY_ADD},
        {"flags": v2.HIGH_PRIORITY},
    ):
        data = adds(version, before) + adds(version, [at], **options) + adds(version, after)
        assert runs(data) == [before, [at], after]
        foreign = RequestDecoder().feed(data)[1]
        assert isinstance(foreign, rq.AddRun)
        assert foreign.run.ledger_id == options.get("ledger_id", 5)
        assert foreign.master_key == options.get("key", KEY)
    for cut in (at + 3, 59):
        ids = list(range(60))
        ids[at], ids[cut] = ids[cut], ids[at]
        assert [i for run in runs(adds(version, ids)) for i in run] == ids


def test_a_v3_add_that_echoes_another_ledger_is_answered_with_it() -> None:
    data = b"".join(
        v3.encode_add(i, 7 if i == 4 else 5, 9 if i == 6 else i, KEY, body(5, i)) for i in range(10)
    )
    answers = b"".join(
        add_answers(request, Status.OK)
        for request in RequestDecoder().feed(data)
        if isinstance(request, rq.AddRun)
    )
    assert [(a.txn_id, a.ledger_id, a.entry_id) for a in v3.ResponseDecoder().feed(answers)] == [
        (i, 7 if i == 4 else 5, 9 if i == 6 else i) for i in range(10)
    ]


def test_a_fencing_read_of_an_old_version_has_no_key() -> None:
    for version in (1, 2):
        data = bytearray(v2.encode_read(5, -1, master_key=KEY))
        data[4] = version
        (request,) = RequestDecoder().feed(bytes(data))
        assert isinstance(request, rq.Read)
        assert request.is_fencing
        assert request.master_key == (KEY if version == 2 else None)


def test_adds_of_old_versions_are_taken_and_of_newer_ones_refused() -> None:
    for version in (0, 1, 3, 9):
        data = bytearray(adds(2, [1]))
        data[4:8] = v2.packet_header(version, v2.ADD).to_bytes(4, "big")
        (request,) = RequestDecoder().feed(bytes(data))
        answer = error_answer(request, Status.OK)
        code = 103 if version > 2 else 0
        assert isinstance(request, rq.Unsupported) == (version > 2)
        header = v2.packet_header(version, v2.ADD)
        assert answer == v2.ANSWER.pack(24, header, code, 5, 1)


@both
def test_flags_arrive(version: int) -> None:
    for flags in range(0, 8, 2):
        (request,) = RequestDecoder().feed(adds(version, [1], flags=flags))
        assert isinstance(request, rq.AddRun)
        assert request.is_recovery == bool(flags & v2.RECOVERY_ADD)
        assert request.is_high_priority == bool(flags & v2.HIGH_PRIORITY)


@both
@pytest.mark.parametrize(("ledger_id", "entry_id"), [(-1, 5), (5, -1), (5, -0x1000)])
def test_adds_with_negative_ids_are_refused_because_journals_use_these(
    version: int, ledger_id: int, entry_id: int
) -> None:
    (request,) = RequestDecoder().feed(adds(version, [entry_id], ledger_id=ledger_id))
    assert isinstance(request, rq.Unsupported)
    answer = error_answer(request, request.status)
    if version == 2:
        assert v2.AnswerDecoder().feed(answer) == [
            v2.AddAnswers(ledger_id, entry_id, entry_id, 100)
        ]
    else:
        (response,) = v3.ResponseDecoder().feed(answer)
        assert response.status is Status.BAD_REQUEST
        assert (response.ledger_id, response.entry_id) == (ledger_id, entry_id)


def test_a_v3_add_too_short_for_its_ids_is_refused_and_a_v2_one_closes() -> None:
    (request,) = RequestDecoder().feed(v3.encode_add(1, 5, 6, KEY, bytes(15)))
    assert isinstance(request, rq.Unsupported)
    (response,) = v3.ResponseDecoder().feed(error_answer(request, request.status))
    assert (response.status, response.entry_id) == (Status.BAD_REQUEST, 6)
    with pytest.raises(RemoteProtocolError):
        RequestDecoder().feed(frame(v2.ADD_HEAD.pack(0, 0x02010000, KEY)[4:] + bytes(15)))


def test_a_deferred_sync_recovery_add_is_synced() -> None:
    data = v3.encode_add(1, 5, 6, KEY, body(5, 6), is_recovery=True, is_deferred_sync=True)
    (request,) = RequestDecoder().feed(data)
    assert isinstance(request, rq.AddRun)
    assert not request.is_deferred_sync


def test_a_v3_add_is_stored_by_the_ids_of_its_entry_and_answered_by_those_of_its_request() -> None:
    data = b"".join(v3.encode_add(i, 7, 90 + i, KEY, body(5, i)) for i in range(6)) + v3.encode_add(
        6, 5, 6, KEY, body(5, 6)
    )
    first, second = RequestDecoder().feed(data)
    assert isinstance(first, rq.AddRun)
    assert isinstance(second, rq.AddRun)
    assert list(first.run.entry_ids()) == list(range(6))
    assert first.run.ledger_id == 5
    answers = v3.ResponseDecoder().feed(add_answers(first, Status.OK))
    assert [(a.txn_id, a.ledger_id, a.entry_id) for a in answers] == [
        (i, 7, 90 + i) for i in range(6)
    ]
    assert list(second.run.entry_ids()) == [6]


def test_logging_context_is_passed_over_and_not_taken_apart() -> None:
    request = v3.encode_read(1, 5, 6, previous_lac=4)[4:]
    whole, spoilt = (b"\xc2\x0c\x04" + pair for pair in (b"\n\0\x12\0", b"\xff" * 4))
    for context in (whole * 50_000, spoilt):
        (found,) = RequestDecoder().feed(frame(request + context))
        assert isinstance(found, rq.Read)
        assert (found.ledger_id, found.entry_id, found.previous_lac) == (5, 6, 4)


def test_adds_with_logging_context_are_understood() -> None:
    request = v3.Request.FromString(v3.encode_add(1, 5, 6, KEY, body(5, 6))[4:])
    request.requestContext.add(key="user", value="x")
    (found,) = RequestDecoder().feed(frame(request.SerializeToString()))
    assert isinstance(found, rq.AddRun)
    assert found.run.entry(6) == body(5, 6)
    request.addRequest.writeFlags = 1
    for is_recovery in (False, True):
        if is_recovery:
            request.addRequest.flag = 1
        (found,) = RequestDecoder().feed(frame(request.SerializeToString()))
        assert isinstance(found, rq.AddRun)
        assert found.is_recovery == is_recovery
        assert found.is_deferred_sync == (not is_recovery)


@pytest.mark.parametrize(
    "ids",
    [
        range(1),
        range(255, 257),
        range(256),
        range(100, 1000),
        [1, 2, 4, 5, 255, 256, 258, 511, 513],
        range(2**40 + 3, 2**40 + 700),
    ],
)
def test_v2_add_answers_in_blocks_are_those_made_one_by_one(ids: Sequence[int]) -> None:
    for code, version in ((0, 2), (104, 1), (101, 0)):
        header = v2.packet_header(version, v2.ADD)
        expected = b"".join(v2.ANSWER.pack(24, header, code, 5, entry_id) for entry_id in ids)
        assert v2.encode_add_answers(5, ids, code, version) == expected
        assert v2.encode_add_answers(5, list(ids), code, version) == expected


@pytest.mark.parametrize("ids", [range(1), range(250, 260, 3), range(7, 3000, 15), range(1000)])
def test_v2_reads_and_their_answers_in_blocks_are_those_made_one_by_one(ids: range) -> None:
    assert v2.encode_reads(5, ids) == b"".join(v2.encode_read(5, i) for i in ids)
    entries = [i.to_bytes(8, "big") * 3 for i in ids]
    expected = b"".join(
        v2.encode_read_answer(5, i, 0, body) for i, body in zip(ids, entries, strict=True)
    )
    assert v2.encode_read_answers(5, ids, list(map(memoryview, entries))) == expected


@pytest.mark.parametrize("second", [v2.encode_read(6, 600), v2.encode_read(5, 900)])
def test_a_row_of_reads_is_one_request_and_ends_where_another_read_comes(second: bytes) -> None:
    data = v2.encode_reads(5, range(0, 600, 3)) + second + v2.encode_reads(5, range(600, 900, 3))
    requests = RequestDecoder().feed(data)
    rows = [request for request in requests if isinstance(request, rq.ReadRun)]
    assert rows[0].entry_ids[0] == 0
    assert rows[-1].entry_ids[-1] == 897
    assert len(requests) < 10


def test_reads_of_the_highest_ids_there_are_do_not_look_for_higher_ones() -> None:
    ids = [*range(2**63 - 10, 2**63, 3), *range(30)]
    requests = RequestDecoder().feed(b"".join(v2.encode_read(5, i) for i in ids))
    assert [request.entry_id for request in requests if isinstance(request, rq.Read)][:4] == ids[:4]


@pytest.mark.parametrize("status", [Status.OK, Status.FENCED])
@pytest.mark.parametrize("first_txn", [0, 100, 127, 16380, 2**31 - 2, 2**63 - 3])
def test_v3_add_answers_are_what_protobuf_writes(status: Status, first_txn: int) -> None:
    ids = [0, 1, 2, 126, 127, 128, 129, 16383, 16384, 2**40, 2**63 - 1]
    for ledger_id in (0, 127, 128, 2**62):
        tokens = [first_txn + n for n in range(len(ids))]
        request = rq.AddRun(
            EntryRun.of(ledger_id, 0, [bytes(20)]),
            KEY,
            version=3,
            transaction_ids=tokens,
            echo_entry_ids=ids,
        )
        expected = b""
        for token, entry_id in zip(tokens, ids, strict=True):
            response = message_class("Response")(status=int(status))
            response.header.version = 3
            response.header.operation = 2
            response.header.txnId = token
            response.addResponse.status = int(status)
            response.addResponse.ledgerId = ledger_id
            response.addResponse.entryId = entry_id
            expected += frame(response.SerializeToString())
        assert add_answers(request, status) == expected
