"""What is kept of streams, and by which rules: schemas, ends, partitions, retention, orphans."""

from __future__ import annotations

from typing import Any

from quorumbook.admin.access.roles import Role
from quorumbook.admin.endpoints.records import NAME, NAMESPACE
from quorumbook.admin.endpoints.streams import plain, policy_of
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.fields import Field, bad_parameter
from quorumbook.streams import (
    Compatibility,
    PartitionedStream,
    Schema,
    SchemaKind,
    Stream,
    StreamPolicy,
)
from quorumbook.streams.errors import StreamNotFoundError
from quorumbook.streams.format.schemas import StreamSchemas
from quorumbook.streams.metadata.policy import DEFAULTS

_TAKEOVERS = ("never", "if_expired", "force")
_RULES = tuple(each.value for each in Compatibility)


async def _schema(ask: Ask) -> object:
    found = await _whole(ask)
    return _shown(ask.path["name"], await found.schemas())


def _shown(name: str, schemas: StreamSchemas) -> dict[str, object]:
    return {
        "name": name,
        "compatibility": schemas.compatibility.value,
        "versions": [
            {"version": number, "kind": each.kind.value, "message": each.message,
             "registry_id": each.registry_id or None, "text": each.text}
            for number, each in enumerate(schemas.versions, 1)
        ],
    }  # fmt: skip


async def _set_schema(ask: Ask) -> object:
    kind, text, rule = (ask.body[name] for name in ("kind", "text", "compatibility"))
    if (kind is None) != (text is None) or (text is None and rule is None):
        raise bad_parameter("give kind and text, compatibility, or all of them")
    schema = None
    if text is not None:
        schema = Schema(
            SchemaKind(kind), text, ask.body["message"], ask.body["registry_id"]
        )  # fmt: skip
    found = await _whole(ask)
    now = await found.set_schema(
        schema,
        compatibility=None if rule is None else Compatibility(rule),
        expected=ask.body["expected"],
    )
    return _shown(ask.path["name"], now)


async def _whole(ask: Ask) -> Stream | PartitionedStream:
    return await ask.service.streams.whole(ask.query["namespace"], ask.path["name"])


async def _seal(ask: Ask) -> object:
    options: Any = {"takeover": ask.body["takeover"], "wait_for_lock_s": 5.0}
    found = await _whole(ask)
    await ask.service.streams.let_go(ask.query["namespace"], found)
    if isinstance(found, PartitionedStream):
        await found.seal(**options)
    else:
        async with found.writer(**options) as writer:
            await writer.seal()
    return {"name": ask.path["name"], "state": "sealed"}


async def _grow(ask: Ask) -> object:
    found = await _whole(ask)
    if isinstance(found, Stream):
        raise StreamNotFoundError(f"{ask.path['name']} is not a partitioned stream")
    before, wanted = len(found.partitions), ask.body["partitions"]
    if wanted < before:
        raise bad_parameter(f"partitions must be at least {before}: none is taken away")
    await found.grow(wanted)
    return {"name": ask.path["name"], "partitions": len(found.partitions), "were": before}


async def _retain(ask: Ask) -> object:
    names: list[Any] = ask.body["streams"] or []
    if not all(isinstance(name, str) for name in names):
        raise bad_parameter("streams must be a list of names")
    namespace = await ask.service.streams.namespace(ask.query["namespace"])
    if not names:
        names = [name async for name in namespace.streams()]
    rows: list[dict[str, object]] = []
    overrun: list[dict[str, object]] = []
    for name in names:
        found = await ask.service.streams.whole(ask.query["namespace"], name)
        for part in [found] if isinstance(found, Stream) else found.partitions:
            report = await part.enforce_retention(dry_run=ask.body["dry_run"])
            rows += [
                {"stream": part.name, "segment": each.number, "ledger_id": each.ledger_id,
                 "records": each.record_count, "reason": str(each.reason)}
                for each in report.segments
            ]  # fmt: skip
            overrun += [{"stream": part.name, "cursor": str(each)} for each in report.overrun]
    return {"dry_run": ask.body["dry_run"], "segments": rows, "overrun": overrun}


async def _orphans(ask: Ask) -> object:
    return await _found_orphans(ask, delete=False, grace_s=0.0)


async def _delete_orphans(ask: Ask) -> object:
    return await _found_orphans(ask, delete=True, grace_s=ask.body["grace_s"])


async def _found_orphans(ask: Ask, *, delete: bool, grace_s: float) -> dict[str, object]:
    namespace = await ask.service.streams.namespace(ask.query["namespace"])
    async with ask.service.walk():
        found = await namespace.orphans(delete=delete, grace_s=grace_s)
    return {
        "orphans": [
            {"ledger_id": each.ledger_id, "stream": each.stream, "bytes": each.size_bytes,
             "state": str(each.state)}
            for each in found
        ]
    }  # fmt: skip


async def _policy(ask: Ask) -> object:
    namespace = await ask.service.streams.namespace(ask.query["namespace"])
    own = await namespace.policy()
    whole = own.over(DEFAULTS).given()
    return {
        "namespace": ask.query["namespace"],
        "policy": {name: plain(value) for name, value in whole.items()},
        "policy_own": sorted(own.given()),
    }


async def _set_policy(ask: Ask) -> object:
    changes = policy_of(ask.body["policy"]).given()
    inherited = set(map(str, ask.body["inherit"] or ()))
    StreamPolicy.of(dict.fromkeys(inherited))  # says what is no policy
    namespace = await ask.service.streams.namespace(ask.query["namespace"], bind=True)
    own = await namespace.policy()
    given = {name: value for name, value in own.given().items() if name not in inherited}
    await namespace.set_policy(StreamPolicy.of(given | changes), expected=own)
    return await _policy(ask)


_QUERY = {"namespace": NAMESPACE}
_NAMES = {"name": NAME}
_BASE = "/api/v2/streams/{name:path}"
_AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
ENDPOINTS = (
    Endpoint("GET", f"{_BASE}/schema", Role.VIEWER, "All versions of a stream's schema.", _schema,
             query=_QUERY, names=_NAMES, command="quorumbook stream schema show {name}"),
    Endpoint(
        "PUT", f"{_BASE}/schema", Role.ADMIN,
        "Add a version to a stream's schema, or change its rule. What a schema registry answers "
        "is taken with registry_id.", _set_schema, query=_QUERY, names=_NAMES,
        body={
            "kind": Field("string", "What text is.", example="avro",
                          choices=tuple(each.value for each in SchemaKind)),
            "text": Field("string", "JSON of a JSON Schema or an Avro schema, base64 of a "
                          "FileDescriptorSet.", max_length=1_000_000, example=_AVRO),
            "message": Field("string", "Protobuf's message, as shop.Order.", default="",
                             max_length=500),
            "registry_id": Field("integer", "Its id in the schema registry that it came from.",
                                 default=0, minimum=0, maximum=2**32 - 1),
            "compatibility": Field("string", "What this and each later version must keep to.",
                                   choices=_RULES),
            "expected": Field("integer", "Only if this is the last version; 0: none.", minimum=0,
                              maximum=2**31),
        },
        command="quorumbook stream schema set {name} FILE",
    ),
    Endpoint(
        "POST", f"{_BASE}/seal", Role.ADMIN,
        "End a stream permanently: nobody appends to it again.", _seal, query=_QUERY, names=_NAMES,
        body={"takeover": Field("string", "What happens to a writer that has it.",
                                default="if_expired", choices=_TAKEOVERS)},
        command="quorumbook stream seal {name}",
    ),
    Endpoint(
        "PUT", f"{_BASE}/partitions", Role.ADMIN,
        "Add partitions to a partitioned stream; keys go to other ones from then on.", _grow,
        query=_QUERY, names={"name": Field("string", NAME.text, max_length=500, example="jobs")},
        body={"partitions": Field("integer", "How many it is to have.", is_required=True,
                                  minimum=1, maximum=1000, example=4)},
        command="quorumbook stream alter {name} --partitions 4",
    ),
    Endpoint(
        "POST", "/api/v2/retention", Role.ADMIN,
        "Delete what streams need not keep, by their policies and cursors.", _retain, query=_QUERY,
        body={"streams": Field("array", "Their names; all if not given.", max_length=1000),
              "dry_run": Field("boolean", "Only say what would go.", default=False, example=True)},
        command="quorumbook stream retention",
    ),
    Endpoint("GET", "/api/v2/orphans", Role.VIEWER,
             "Ledgers that were made for streams and that nothing refers to.", _orphans,
             query=_QUERY, command="quorumbook stream orphans"),
    Endpoint("POST", "/api/v2/orphans", Role.ADMIN,
             "Mark orphans, and delete those that were marked long enough ago.", _delete_orphans,
             query=_QUERY,
             body={"grace_s": Field("number", "How long what is marked stays.", default=3600,
                                    minimum=0, maximum=10**9)},
             command="quorumbook stream orphans --delete"),
    Endpoint("GET", "/api/v2/policy", Role.VIEWER, "What holds for all streams of a namespace.",
             _policy, query=_QUERY, command="quorumbook stream policy"),
    Endpoint(
        "PUT", "/api/v2/policy", Role.ADMIN, "Change what holds for all streams of a namespace.",
        _set_policy, query=_QUERY,
        body={"policy": Field("object", 'Names and values, such as {"retain_time_s": "7d"}.',
                              example={"retain_time_s": "7d"}),
              "inherit": Field("array", "What is as by default again.", max_length=100)},
        command="quorumbook stream policy --policy NAME=VALUE",
    ),
)  # fmt: skip
