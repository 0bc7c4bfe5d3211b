"""Streams: create, list, show, truncate, delete; their policies, cursors and groups."""

from __future__ import annotations

from typing import Any

from quorumbook.admin.access.roles import Role
from quorumbook.admin.endpoints.records import NAME, NAMESPACE, PARTITION, start_of
from quorumbook.admin.facts.places import WHERE
from quorumbook.admin.facts.streams import stream_rows
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import Field, bad_parameter
from quorumbook.admin.http.problems import ApiError
from quorumbook.streams import Cursor, PartitionedStream, Stream, StreamPolicy
from quorumbook.streams.cursors.shown import row_to_show
from quorumbook.streams.errors import (
    NamespaceNotBoundError,
    StreamError,
    StreamNotFoundError,
)
from quorumbook.streams.metadata.policy import DEFAULTS
from quorumbook.streams.partitions.stream import reset_group
from quorumbook.streams.reading.seek import place
from quorumbook.streams.stream_context import stream_context

#: So long a page reads what the metadata says of its streams.
_FACTS_S = 0.4


async def streams(ask: Ask) -> dict[str, object]:
    """Return the names of streams; none where there is no namespace yet."""
    limit, after = ask.query["limit"], ask.query["after"]
    names: list[str] = []
    more: dict[str, object] = {}
    is_more = False
    try:
        namespace = await ask.service.streams.namespace(ask.query["namespace"])
        async for name in namespace.streams(ask.query["prefix"] or ""):
            if after is not None and name <= after:
                continue
            if len(names) == limit:
                is_more = True
                break
            names.append(name)
        if ask.is_page or ask.query.get("long"):
            within_s = _FACTS_S if ask.is_page else None
            more["facts"] = await stream_rows(namespace, names, within_s)
    except NamespaceNotBoundError:
        names = []
    return {"streams": names, **more, "next_after": names[-1] if is_more else None}


async def _create(ask: Ask) -> object:
    namespace = await ask.service.streams.namespace(ask.query["namespace"], bind=True)
    policy = policy_of(ask.body["policy"])
    options: Any = {"policy": policy, "exist_ok": ask.body["exist_ok"]}
    name, count = ask.body["name"], ask.body["partitions"]
    if count is None:
        return {"name": (await namespace.create_stream(name, **options)).name}
    made = await PartitionedStream.create(namespace, name, partitions=count, **options)
    return {"name": name, "partitions": [part.name for part in made.partitions]}


def policy_of(given: dict[str, object] | None) -> StreamPolicy:
    """Read a policy.

    Raises:
        ApiError: It is none.
    """
    texts = {name: value for name, value in (given or {}).items() if isinstance(value, str)}
    if len(texts) != len(given or {}):
        raise bad_parameter('policy must be an object of texts, such as {"retain_time_s": "7d"}')
    return StreamPolicy.parse(texts, "policy")


async def stream(ask: Ask) -> dict[str, object]:
    """Return what the metadata say of a stream, its cursors and groups included."""
    found = await ask.service.streams.whole(ask.query["namespace"], ask.path["name"])
    parts = [found] if isinstance(found, Stream) else list(found.partitions)
    rows = [await _info(part) for part in parts]
    policy = await parts[0].policy()
    namespace = await ask.service.streams.namespace(ask.query["namespace"])
    whole = policy.over(await namespace.policy()).over(DEFAULTS).given()
    return {
        "name": ask.path["name"],
        "namespace": ask.query["namespace"],
        "is_partitioned": not isinstance(found, Stream),
        "partitions": rows,
        "records_completed": sum(int(str(row["records_completed"])) for row in rows),
        "policy": {name: plain(value) for name, value in whole.items()},
        "policy_own": sorted(policy.given()),
    }


def plain(value: object) -> object:
    """Return what JSON can have of a policy's value."""
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)


async def _info(part: Stream) -> dict[str, object]:
    damaged: list[StreamError] = []
    info = await part.info(damaged.append)
    return {
        "name": info.name,
        "writer": info.writer or None,
        "is_sealed": info.is_sealed,
        "max_txid": info.max_txid,
        "records_completed": info.record_count,
        "segments": [
            {
                "segment": segment.metadata.number,
                "ledger_id": segment.metadata.ledger_id,
                "state": "in progress" if segment.metadata.is_in_progress else "completed",
                "truncation": segment.metadata.truncation.name.lower(),
                "first_sequence_id": segment.start_sequence_id,
                "records": None
                if segment.metadata.is_in_progress
                else segment.metadata.record_count,
                "first_txid": segment.metadata.first_txid,
                "last_txid": segment.metadata.last_txid,
                "completed_at_ms": segment.metadata.completed_at_ms or None,
            }
            for segment in info.segments
        ],
        "damaged": [str(error) for error in damaged],
    }


async def cursors(ask: Ask) -> dict[str, object]:
    """Return a stream's cursors with their lag."""
    found = await ask.service.streams.whole(ask.query["namespace"], ask.path["name"])
    parts = [found] if isinstance(found, Stream) else list(found.partitions)
    return {
        "cursors": [
            {"partition": number, **await _cursor_row(cursor)}
            for number, part in enumerate(parts)
            for cursor in await part.cursors()
        ]
    }


async def _cursor_row(cursor: Cursor) -> dict[str, object]:
    row, damage = await row_to_show(cursor)
    return row | {"damage": None if damage is None else str(damage)}


async def groups(ask: Ask) -> dict[str, object]:
    """Return the groups of a partitioned stream, with members and lag; else none."""
    found = await ask.service.streams.whole(ask.query["namespace"], ask.path["name"])
    if isinstance(found, Stream):
        await found.info()
        return {"groups": []}
    rows = []
    for info in await found.groups():
        partitions = []
        for number, cursor in info.cursors.items():
            row: dict[str, object] = {"partition": number, "member": info.claims.get(number)}
            if cursor is not None:
                row |= await _cursor_row(cursor)
                row["refused"] = len(cursor.acks.refused) if cursor.acks else 0
            partitions.append(row)
        damage = None if info.damage is None else str(info.damage)
        rows.append(
            {"group": info.name, "generation": info.generation, "partitions": partitions,
             "damage": damage}
        )  # fmt: skip
    return {"groups": rows}


async def _set_policy(ask: Ask) -> object:
    one = await _parts(ask)
    changes = policy_of(ask.body["policy"]).given()
    inherited = set(map(str, ask.body["inherit"] or ()))
    StreamPolicy.of(dict.fromkeys(inherited))  # says what is no policy
    for part in one:
        own = await part.policy()
        given = {name: value for name, value in own.given().items() if name not in inherited}
        await part.set_policy(StreamPolicy.of(given | changes), expected=own)
    return await stream(ask)


async def _parts(ask: Ask) -> list[Stream]:
    found = await ask.service.streams.whole(ask.query["namespace"], ask.path["name"])
    return [found] if isinstance(found, Stream) else list(found.partitions)


async def _truncate(ask: Ask) -> object:
    place_, is_dry = start_of(ask.body["before"]), ask.body["dry_run"]
    if isinstance(place_, str):
        raise bad_parameter("before must be a position, seq:N, txid:N, or a time")
    one = await ask.service.streams.one(
        ask.query["namespace"], ask.path["name"], ask.query["partition"]
    )
    changed = await one.truncate(place_, dry_run=is_dry)
    return {
        "dry_run": is_dry,
        "segments": [
            {"segment": each.number, "first_active": str(each.first_active or "none")}
            for each in changed
        ],
    }


async def _delete(ask: Ask) -> object:
    namespace = await ask.service.streams.namespace(ask.query["namespace"])
    name = ask.path["name"]
    found = await ask.service.streams.whole(ask.query["namespace"], name)
    if isinstance(found, Stream):
        await namespace.delete_stream(name)
    else:
        await found.delete()
    return {"name": name, "state": "deleted"}


async def _change_cursor(ask: Ask) -> object:
    position, holds = ask.body["position"], ask.body["holds_retention"]
    if position is None and holds is None:
        raise bad_parameter("give position, holds_retention, or both")
    one = await ask.service.streams.one(
        ask.query["namespace"], ask.path["name"], ask.query["partition"]
    )
    await one.info()
    if position is None:
        cursor = await _known_cursor(one, ask.path["cursor"])
    else:
        start = start_of(position)
        cursor = await one.cursor(ask.path["cursor"], start=start)
        await cursor.reset(await place(stream_context(one), start))
    if holds is not None:
        await cursor.hold_retention(holds=holds)
    return await _cursor_row(cursor)


async def _known_cursor(one: Stream, name: str) -> Cursor:
    for cursor in await one.cursors():
        if cursor.name == name:
            return cursor
    raise ApiError(404, "no-such-cursor", f"there is no cursor {name[:80]}")


async def _delete_cursor(ask: Ask) -> object:
    one = await ask.service.streams.one(
        ask.query["namespace"], ask.path["name"], ask.query["partition"]
    )
    cursor = await _known_cursor(one, ask.path["cursor"])
    await cursor.delete()
    return {"cursor": cursor.name, "state": "deleted"}


async def _reset_group(ask: Ask) -> object:
    start = start_of(ask.body["position"])
    await reset_group(await _partitioned(ask), ask.path["group"], start)
    return {"group": ask.path["group"], "position": ask.body["position"]}


async def _delete_group(ask: Ask) -> object:
    await (await _partitioned(ask)).delete_group(ask.path["group"])
    return {"group": ask.path["group"], "state": "deleted"}


async def _partitioned(ask: Ask) -> PartitionedStream:
    found = await ask.service.streams.whole(ask.query["namespace"], ask.path["name"])
    if isinstance(found, Stream):
        raise StreamNotFoundError(f"{ask.path['name']} is not a partitioned stream")
    return found


_BASE = "/api/v2/streams/{name:path}"
_NAMES = {"name": NAME}
_QUERY = {"namespace": NAMESPACE}
_PART = {**_QUERY, "partition": PARTITION}
_CURSOR = {
    "name": NAME,
    "cursor": Field("string", "The cursor's name.", max_length=200, example="billing"),
}
_PARTITIONED = Field("string", NAME.text, max_length=500, example="jobs")
_GROUP = {"name": _PARTITIONED,
          "group": Field("string", "The group's name.", max_length=200,
                         example="billing")}  # fmt: skip
_POLICY = Field("object", 'Names and values, such as {"retain_time_s": "7d"}.',
                example={"retain_time_s": "7d"})  # fmt: skip
_POSITION = Field("string", f"Where to: {WHERE}.", is_required=True, example="earliest")

ENDPOINTS = (
    Endpoint(
        "GET", "/api/v2/streams", Role.VIEWER, "Names of streams, page by page.", streams,
        query={
            **_QUERY,
            "prefix": Field("string", "Only names that begin so.", max_length=500),
            "after": Field("string", "Only later names: `next_after` of the page before.",
                           max_length=500),
            "limit": Field("integer", "At most this many.", default=100, minimum=1, maximum=1000),
            "long": Field("boolean", "What the metadata says of each, too, as `facts`.",
                          default=False),
        },
        command="quorumbook stream ls --long",
    ),
    Endpoint(
        "POST", "/api/v2/streams", Role.OPERATOR,
        "Create a stream, and its namespace if that is missing.", _create, query=_QUERY,
        body={
            "name": Field("string", "Its name.", is_required=True, max_length=500,
                          example="orders/uk"),
            "partitions": Field("integer", "How many partitions it has.", minimum=1,
                                maximum=1000),
            "policy": _POLICY,
            "exist_ok": Field("boolean", "Be content with one that is there.", default=False),
        },
        status=201, command="quorumbook stream create NAME",
    ),
    Endpoint("GET", f"{_BASE}/cursors", Role.VIEWER, "A stream's cursors, and their lag.", cursors,
             query=_QUERY, names=_NAMES, command="quorumbook stream cursors {name}"),
    Endpoint("PUT", f"{_BASE}/cursors/{{cursor}}", Role.ADMIN,
             "Make a cursor, take it elsewhere, or have retention keep what it has not passed.",
             _change_cursor, query=_PART,
             body={"position": Field("string", f"Where to: {WHERE}.", example="seq:3"),
                   "holds_retention": Field("boolean", "Whether retention keeps to it.")},
             names=_CURSOR,
             command="quorumbook stream cursors {name} --reset {cursor} WHERE"),
    Endpoint("DELETE", f"{_BASE}/cursors/{{cursor}}", Role.ADMIN, "Forget a cursor.",
             _delete_cursor, query=_PART, names=_CURSOR,
             command="quorumbook stream cursors {name} --delete {cursor}"),
    Endpoint("GET", f"{_BASE}/groups", Role.VIEWER, "Consumer groups: members and lag.", groups,
             query=_QUERY, names=_NAMES, command="quorumbook stream groups {name}"),
    Endpoint("PUT", f"{_BASE}/groups/{{group}}", Role.ADMIN,
             "Take a group elsewhere, in all partitions.", _reset_group, query=_QUERY,
             body={"position": _POSITION}, names=_GROUP,
             command="quorumbook stream groups {name} --reset {group} WHERE"),
    Endpoint("DELETE", f"{_BASE}/groups/{{group}}", Role.ADMIN, "Forget a group without members.",
             _delete_group, query=_QUERY, names=_GROUP,
             command="quorumbook stream groups {name} --delete {group}"),
    Endpoint(
        "PUT", f"{_BASE}/policy", Role.ADMIN, "Change what a stream does not inherit.",
        _set_policy, query=_QUERY,
        body={"policy": _POLICY,
              "inherit": Field("array", "What it inherits again.", max_length=100)},
        names=_NAMES, command="quorumbook stream policy {name} --policy NAME=VALUE",
    ),
    Endpoint(
        "POST", f"{_BASE}/truncate", Role.ADMIN, "Delete the records before a place.", _truncate,
        query=_PART,
        body={
            "before": Field("string", "A position, seq:N, txid:N, or a time.", is_required=True,
                            example="seq:1"),
            "dry_run": Field("boolean", "Only say what would go.", default=False),
        },
        names=_NAMES, command="quorumbook stream truncate {name} --before WHERE",
    ),
    # Last: its path takes all that the others do not.
    Endpoint("GET", _BASE, Role.VIEWER, "One stream: segments, writer, policy.", stream,
             query=_QUERY, names=_NAMES, command="quorumbook stream show {name}"),
    Endpoint("DELETE", _BASE, Role.ADMIN, "Delete a stream with its records for good.", _delete,
             query=_QUERY, names=_NAMES, command="quorumbook stream delete {name} --yes"),
)  # fmt: skip
