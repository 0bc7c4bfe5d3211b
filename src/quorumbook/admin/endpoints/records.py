"""Records over HTTP: append, read, follow, and consume by a group.

    POST   /api/v2/streams/NAME/records          {"records": [{"text": "hello"}]}, or one as it is
    GET    /api/v2/streams/NAME/records          from=earliest&limit=100&wait_s=10
    GET    /api/v2/streams/NAME/tail             server-sent events; Last-Event-ID goes on
    POST   /api/v2/streams/NAME/groups/G/records {"member": "a", "limit": 100, "wait_s": 10}
    POST   /api/v2/streams/NAME/groups/G/ack     {"member": "a", "ids": ["0:17"]}

A payload is given and shown as ``text``, ``json`` or ``base64``; with ``decode=schema`` it is shown
as ``decoded``, which the stream's schema says, or beside ``decode_error``.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import itertools
import json
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from quorumbook.admin.access.roles import Role
from quorumbook.admin.facts.decoding import Decoded, StreamDecoding
from quorumbook.admin.facts.places import WHERE, parse_place
from quorumbook.admin.http.endpoint import Ask, Endpoint, Events, Text
from quorumbook.admin.http.fields import ID_MAX, Field, bad_parameter
from quorumbook.admin.http.problems import ApiError
from quorumbook.admin.http.streams_held import IN_HAND_MAX, MEMBER_IDLE_S, HeldMember, MemberKey
from quorumbook.errors import LocalProtocolError
from quorumbook.streams import (
    Appended,
    Attributes,
    Delivery,
    Record,
    SequenceId,
    Stream,
)

NAMESPACE = Field("string", "The namespace the stream is in.", default="/streams", max_length=500)
PARTITION = Field("integer", "This one of its partitions.", minimum=0, maximum=1_000_000)
NAME = Field("string", "The stream's name; it may have slashes.", max_length=500,
             example="orders/eu")  # fmt: skip
_PARTITIONED = Field("string", NAME.text, max_length=500, example="jobs")
_GROUP = Field("string", "The group's name.", max_length=200, example="billing")
_MEMBER = Field("string", "The member's name; another one for each that consumes at a time. A "
                "token sees its own members alone.",
                is_required=True, max_length=200, example="a")  # fmt: skip
DECODE = Field("string", "By the stream's schema, whose fields are `decoded`; where that cannot "
               "be, `decode_error` says why.", choices=("schema",))  # fmt: skip
_IDS = Field("array", "The `id`s of records as they were handed out.", is_required=True,
             max_length=10_000, example=["0:0"])  # fmt: skip
_RECORDS_MAX = 10_000
#: Of a stream that is followed, decoded in one piece.
_DECODED_MAX = 500
_ANSWER_BYTES = 4 * 1024 * 1024
_PAYLOADS = ("text", "json", "base64")
_RECORD_FIELDS = {*_PAYLOADS, "key", "key_base64", "headers", "event_time_ms"}


def start_of(text: str) -> Any:
    """Read where to begin.

    Raises:
        ApiError: It is no place.
    """
    try:
        return parse_place(text)
    except LocalProtocolError as error:
        raise bad_parameter(str(error)) from None


def shown_bytes(data: bytes) -> dict[str, str]:
    """Return bytes as text where they are, else as base64."""
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def record_row(record: Record) -> dict[str, object]:
    """Return a record as JSON has it."""
    row: dict[str, object] = {
        "sequence_id": record.sequence_id,
        "position": str(record.position),
        "txid": record.txid,
        "appended_at_ms": record.appended_at_ms,
        "bytes": len(record.payload),
        **shown_bytes(record.payload),
    }
    if record.key is not None:
        ((kind, value),) = shown_bytes(record.key).items()
        row["key" if kind == "text" else "key_base64"] = value
    if record.headers:
        row["headers"] = {
            name: next(iter(shown_bytes(value).values())) for name, value in record.headers.items()
        }
    if record.event_time_ms is not None:
        row["event_time_ms"] = record.event_time_ms
    return row


def decoded_row(record: Record, decoded: Decoded) -> str:
    """Return a record as JSON text that its schema says; beside its payload if that cannot be."""
    row = record_row(record)
    if decoded.text is None:
        return json.dumps({**row, "decode_error": decoded.reason})
    for name in "text", "base64":
        row.pop(name, None)
    return f'{json.dumps(row)[:-1]}, "decoded": {decoded.text}}}'


async def _append(ask: Ask) -> object:
    path, name = ask.query["namespace"], ask.path["name"]
    records = ask.body["records"]
    if not records:
        raise bad_parameter("records is empty")
    read = [_read_record(number, record) for number, record in enumerate(records)]
    producer, sequence = ask.query["producer"], ask.query["sequence"]
    if sequence is not None and producer is None:
        raise bad_parameter("sequence needs producer: it is the producer's number")
    found = await ask.service.streams.whole(path, name)
    if isinstance(found, Stream) or ask.query["partition"] is not None:
        stream = await ask.service.streams.one(path, name, ask.query["partition"])
        return {"appended": await _append_to(ask, stream, read, producer, sequence)}
    if producer is not None:
        raise bad_parameter("producer needs partition: its numbers are counted in one partition")
    parts = found.partitions
    without_key = random.randrange(len(parts))
    by_part: dict[int, list[int]] = {}
    for number, (_, attributes) in enumerate(read):
        key = attributes.key
        part = without_key if key is None else found.partition_of(key)
        by_part.setdefault(part, []).append(number)
    rows: dict[int, dict[str, object]] = {}
    for part, numbers in by_part.items():
        appended = await _append_to(ask, parts[part], [read[n] for n in numbers], None, None)
        rows |= {n: {"partition": part, **row} for n, row in zip(numbers, appended, strict=True)}
    return {"appended": [rows[number] for number in range(len(read))]}


async def _append_to(
    ask: Ask,
    stream: Stream,
    records: list[tuple[bytes, Attributes]],
    producer: str | None,
    sequence: int | None,
) -> list[dict[str, object]]:
    path = ask.query["namespace"]
    async with ask.service.streams.writing(path, stream, producer) as writer:
        appended = await writer.append_batch(
            [payload for payload, _ in records],
            attributes=[attributes for _, attributes in records],
            producer_seq=sequence,
            expected_sequence=ask.query["expect"],
        )
        # Whoever hears of the answer can read the records.
        await writer.flush()
        return [_appended_row(each) for each in appended]


def _appended_row(appended: Appended) -> dict[str, object]:
    return {
        "sequence_id": appended.sequence_id,
        "position": None if appended.position is None else str(appended.position),
        "txid": appended.txid,
        "duplicate": appended.duplicate,
    }


def payload_of(where: str, given: object) -> bytes:
    """Return the bytes of an object with one of text, json and base64.

    Raises:
        ApiError: It is none.
    """
    if not isinstance(given, dict) or len(set(_PAYLOADS) & given.keys()) != 1:
        raise bad_parameter(f"{where} must be an object with one of {', '.join(_PAYLOADS)}")
    if "json" in given:
        try:
            return json.dumps(given["json"], separators=(",", ":"), ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise bad_parameter(f"{where}.json is not Unicode, or too deep") from None
    return _bytes(given, "text", "base64", where) or b""


def _read_record(number: int, record: object) -> tuple[bytes, Attributes]:
    """Read a record of a request.

    Raises:
        ApiError: It is none.
    """
    where = f"records[{number}]"
    payload = payload_of(where, record)
    assert isinstance(record, dict)
    if unknown := record.keys() - _RECORD_FIELDS:
        raise bad_parameter(f"{where} has {sorted(unknown)[0]!r:.80}, which a record has not")
    headers = record.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        raise bad_parameter(f"{where}.headers must be an object of texts")
    event_time_ms = record.get("event_time_ms")
    if event_time_ms is not None and not (
        type(event_time_ms) is int and -(2**63) <= event_time_ms < 2**63
    ):
        raise bad_parameter(f"{where}.event_time_ms must be milliseconds since 1970")
    try:
        pairs = tuple((str(key), value.encode()) for key, value in headers.items())
    except UnicodeEncodeError:
        raise bad_parameter(f"{where}.headers hold text that is not Unicode") from None
    key = _bytes(record, "key", "key_base64", where)
    return payload, Attributes(key, pairs, event_time_ms)


def _bytes(record: Mapping[str, object], text: str, encoded: str, where: str) -> bytes | None:
    if encoded in record:
        try:
            return base64.b64decode(cast(str, record[encoded]), validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise bad_parameter(f"{where}.{encoded} is not base64") from None
    value = record.get(text)
    if value is None:
        return None
    if not isinstance(value, str):
        raise bad_parameter(f"{where}.{text} must be text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise bad_parameter(f"{where}.{text} is not Unicode") from None


async def _read(ask: Ask) -> object:
    stream = await ask.service.streams.one(
        ask.query["namespace"], ask.path["name"], ask.query["partition"]
    )
    options: dict[str, Any] = {"on_truncated": "skip"} if ask.query["skip_truncated"] else {}
    wait_s = ask.query["wait_s"]
    start = start_of(ask.query["from"])
    decoding = await _decoding(ask, stream)
    async with stream.reader(start, tail=wait_s > 0, **options) as reader:
        records = await reader.read(ask.query["limit"], _ANSWER_BYTES, wait_s=wait_s or None)
        last = records[-1] if records else None
        following = None
        if last is not None and last.sequence_id >= 0:
            following = f"seq:{last.sequence_id + 1}"
    if decoding is None:
        return {"records": [record_row(record) for record in records], "next": following}
    found = zip(records, await decoding.of(records), strict=True)
    rows = ", ".join(decoded_row(record, decoded) for record, decoded in found)
    text = f'{{"records": [{rows}], "next": {json.dumps(following)}}}'
    return Text(text.encode(), "application/json")


async def _decoding(ask: Ask, stream: Stream) -> StreamDecoding | None:
    """Return what decodes records; None if that is not wanted.

    Raises:
        SchemaNotFoundError: The stream has no schema.
    """
    if ask.query["decode"] is None:
        return None
    found = StreamDecoding(ask.service.decoding, stream)
    await found.start()
    return found


async def _tail(ask: Ask) -> object:
    stream = await ask.service.streams.one(
        ask.query["namespace"], ask.path["name"], ask.query["partition"]
    )
    await stream.info()  # says so if there is none, while an error can be said
    start: Any = start_of(ask.query["from"])
    if ask.query["last_event_id"] is not None:
        start = SequenceId(ask.query["last_event_id"] + 1)
    decoding = await _decoding(ask, stream)

    async def events() -> AsyncIterator[Mapping[str, object]]:
        async with stream.reader(start, tail=True) as reader:
            while True:
                most = _RECORDS_MAX if decoding is None else _DECODED_MAX
                found = await reader.read(most, _ANSWER_BYTES, wait_s=10.0)
                decoded = await decoding.of(found) if decoding is not None else []
                for record, row in itertools.zip_longest(found, decoded):
                    data = record_row(record) if row is None else decoded_row(record, row)
                    yield {"id": record.sequence_id, "data": data}
                if not found:
                    yield {}

    return Events(events())


async def _consume(ask: Ask) -> object:
    async with _member(ask, joins=True) as member:
        if member.lock.locked():
            raise ApiError(409, "member-busy", "this member is waiting for records already")
        async with member.lock:
            room = IN_HAND_MAX - len(member.in_hand)
            if room <= 0:
                raise ApiError(
                    409,
                    "too-much-in-hand",
                    f"{IN_HAND_MAX:,} records wait for ack or nack; send those",
                )
            limit = min(ask.body["limit"], room)
            found = await member.consumer.read(limit, wait_s=ask.body["wait_s"])
            member.in_hand |= {(each.partition, each.record.sequence_id): each for each in found}
        return {"records": [_delivery_row(each) for each in found], "in_hand": len(member.in_hand)}


def _member(ask: Ask, *, joins: bool) -> contextlib.AbstractAsyncContextManager[HeldMember]:
    return ask.service.streams.member(_member_key(ask, ask.body["member"]), joins=joins)


def _member_key(ask: Ask, name: str) -> MemberKey:
    return ask.service.streams.member_key(
        ask.who, ask.query["namespace"], ask.path["name"], ask.path["group"], name
    )


def _delivery_row(delivery: Delivery) -> dict[str, object]:
    record = delivery.record
    return {
        "id": f"{delivery.partition}:{record.sequence_id}",
        "partition": delivery.partition,
        "delivery_count": delivery.delivery_count,
        **record_row(record),
    }


async def _acknowledge(ask: Ask) -> object:
    async with _member(ask, joins=False) as member:
        chosen = _in_hand(ask, member)
        await member.consumer.ack(*chosen)
        return _let_go(member, chosen, "acknowledged")


async def _refuse(ask: Ask) -> object:
    async with _member(ask, joins=False) as member:
        chosen = _in_hand(ask, member)
        await member.consumer.nack(*chosen, delay_s=ask.body["delay_s"])
        return _let_go(member, chosen, "refused")


def _let_go(member: HeldMember, chosen: list[Delivery], word: str) -> dict[str, object]:
    for each in chosen:
        member.in_hand.pop((each.partition, each.record.sequence_id), None)
    return {word: len(chosen), "in_hand": len(member.in_hand)}


def _in_hand(ask: Ask, member: HeldMember) -> list[Delivery]:
    chosen = []
    for each in ask.body["ids"]:
        partition, _, sequence = str(each).partition(":")
        try:
            key = (int(partition[:20]), int(sequence[:20]))
        except ValueError:
            raise bad_parameter(f"{str(each)[:80]!r} is not an id of a record, as 0:17") from None
        if key not in member.in_hand:
            raise ApiError(
                409,
                "not-in-hand",
                f"{key[0]}:{key[1]} is not in the hands of member {ask.body['member']}: it was "
                "acknowledged, refused, or went to another member; it is handed out again if "
                "nobody acknowledges it",
            )
        chosen.append(member.in_hand[key])
    return chosen


async def _leave(ask: Ask) -> object:
    if not await ask.service.streams.leave(_member_key(ask, ask.path["member"])):
        raise ApiError(404, "no-such-member", "this server has no such member")
    return {"left": True}


_PLACE = {"namespace": NAMESPACE, "partition": PARTITION}
_NAMES = {"name": NAME}
_GROUP_NAMES = {"name": _PARTITIONED, "group": _GROUP}
_IN_HAND = {"member": _MEMBER, "ids": _IDS}
_BASE = "/api/v2/streams/{name:path}"

ENDPOINTS = (
    # First: a stream's own path takes any name, also one that ends like theirs.
    Endpoint(
        "POST", f"{_BASE}/groups/{{group}}/records", Role.OPERATOR,
        "Take the next records of a group's partitions. What is not acknowledged is handed out "
        f"again when the member was silent for {MEMBER_IDLE_S:.0f} s.", _consume,
        query={"namespace": NAMESPACE},
        body={
            "member": _MEMBER,
            "limit": Field("integer", "At most this many.", default=100, minimum=1, maximum=1000),
            "wait_s": Field("number", "Wait so long for the first.", default=0.5, minimum=0,
                            maximum=60),
        },
        names=_GROUP_NAMES, command="quorumbook stream consume {name} --group {group}",
    ),
    Endpoint(
        "POST", f"{_BASE}/groups/{{group}}/ack", Role.OPERATOR, "Say that records are done.",
        _acknowledge, query={"namespace": NAMESPACE}, body=_IN_HAND, names=_GROUP_NAMES,
    ),
    Endpoint(
        "POST", f"{_BASE}/groups/{{group}}/nack", Role.OPERATOR,
        "Have records handed out again.", _refuse, query={"namespace": NAMESPACE},
        body={**_IN_HAND, "ids": dataclasses.replace(_IDS, example=["0:1"]),
              "delay_s": Field("number", "After so long at least.", default=0,
                                           minimum=0, maximum=86400)},
        names=_GROUP_NAMES,
    ),
    Endpoint(
        "DELETE", f"{_BASE}/groups/{{group}}/members/{{member}}", Role.OPERATOR,
        "Leave a group.", _leave, query={"namespace": NAMESPACE},
        names={**_GROUP_NAMES, "member": Field("string", "The member's name.", max_length=200,
                                                  example="a")},
    ),
    Endpoint(
        "POST", f"{_BASE}/records", Role.OPERATOR,
        "Append records; with producer and sequence, again and again without a duplicate.",
        _append,
        query={
            **_PLACE,
            "producer": Field("string", "Who appends, for appends that are repeated.",
                              max_length=200),
            "sequence": Field("integer", "The producer's number of the first record.",
                              minimum=0, maximum=ID_MAX),
            "expect": Field("integer", "Append only if the first record gets this sequence id.",
                            minimum=0, maximum=ID_MAX),
            "key": Field("string", "The key of a record that is the body as it is."),
        },
        body={"records": Field("array", "Objects with one of text, json, base64, and key, "
                               "key_base64, headers, event_time_ms.", is_required=True,
                               max_length=_RECORDS_MAX,
                               example=[{"text": "hello", "key": "k"}, {"json": {"id": 7}}])},
        names=_NAMES, command="quorumbook stream write {name}",
    ),
    Endpoint(
        "GET", f"{_BASE}/records", Role.VIEWER,
        "Read records; `next` is where the next request goes on.", _read,
        query={
            **_PLACE,
            "from": Field("string", f"Where to begin: {WHERE}.", default="earliest"),
            "limit": Field("integer", "At most this many.", default=100, minimum=1,
                           maximum=_RECORDS_MAX),
            "wait_s": Field("number", "Wait so long for the first.", default=0, minimum=0,
                            maximum=60),
            "skip_truncated": Field("boolean", "Begin with what is left.", default=False),
            "decode": DECODE,
        },
        names=_NAMES, command="quorumbook stream read {name}",
    ),
    Endpoint(
        "GET", f"{_BASE}/tail", Role.VIEWER, "Follow a stream as server-sent events.", _tail,
        query={
            **_PLACE,
            "from": Field("string", f"Where to begin: {WHERE}.", default="latest"),
            "last_event_id": Field("integer", "Go on after this sequence id.", minimum=0,
                                   maximum=ID_MAX),
            "decode": DECODE,
        },
        names=_NAMES, command="quorumbook stream tail {name}",
    ),
)  # fmt: skip
