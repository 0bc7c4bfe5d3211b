"""Which page shows what: its address, its data (which are the API's), its template."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorumbook.admin.access.roles import Role
from quorumbook.admin.console.graph import graph_of
from quorumbook.admin.console.pictures import ledger_boxes, segment_boxes, stage_boxes
from quorumbook.admin.endpoints import bookies, cluster, ledgers, pipelines, records, streams
from quorumbook.admin.facts.bookie_http import STAGES, where_it_went
from quorumbook.admin.facts.cluster import ClusterFacts
from quorumbook.admin.facts.decoding import (
    Decoded,
    StreamDecoding,
    entry_records,
    stream_of,
)
from quorumbook.admin.facts.verdict import DISK_WARNING
from quorumbook.admin.http.endpoint import Ask
from quorumbook.admin.http.fields import ID_MAX, Field
from quorumbook.admin.http.known_facts import SURVEY_S
from quorumbook.errors import ConfigError, LocalProtocolError, UnauthorizedError
from quorumbook.streams import Record
from quorumbook.streams.errors import StreamError

Data = dict[str, Any]
_HEX_BYTES = 4096
#: Of a slow operation's stages so many are named; the picture has all.
_STAGES_SHOWN = 3
#: So many times as long as it came JSON may become when it is indented.
_INDENTED_TIMES = 16


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    path: str
    title: str
    template: str
    load: Callable[[Ask], Awaitable[Data]]
    #: The command that shows the same; names of the path and the query in braces.
    command: str
    #: Where a program gets the same.
    twin: str
    #: Which entry of the navigation it belongs to.
    area: str
    role: Role = Role.VIEWER
    names: Mapping[str, Field] = field(default_factory=dict)
    query: Mapping[str, Field] = field(default_factory=dict)
    #: Keys of the actions that it offers.
    actions: tuple[str, ...] = ()
    #: It is loaded again every so many seconds; 0: not.
    refresh_s: int = 0


async def _overview(ask: Ask) -> Data:
    found = await cluster.cluster(ask)
    return {
        "cluster": found,
        "recovery": await cluster.recovery(ask),
        "is_reading": _is_reading(await ask.facts()),
    }


def _is_reading(facts: ClusterFacts) -> bool:
    """Tell whether the ledgers are read again meanwhile."""
    return facts.at_ms - facts.ledgers.at_ms > SURVEY_S * 1000


async def _clusters(ask: Ask) -> Data:
    return {"rows": (await cluster.clusters(ask))["clusters"]}


async def _bookies(ask: Ask) -> Data:
    found: list[Any] = (await bookies.bookies(ask))["bookies"]  # type: ignore[assignment]
    racks: dict[str, list[Any]] = {}
    for row in sorted(found, key=lambda row: str(row.get("rack", "~"))):
        row["used"] = max(
            (each["used"] for each in row["directories"] if each.get("used") is not None),
            default=None,
        )
        racks.setdefault(str(row.get("rack") or "no rack"), []).append(row)
    facts = await ask.facts()
    return {
        "racks": racks,
        "disk_warning": DISK_WARNING,
        "ledgers_at_ms": facts.ledgers.at_ms,
        "is_reading": _is_reading(facts),
    }


async def _bookie(ask: Ask) -> Data:
    return {"bookie": await bookies.bookie(ask), "disk_warning": DISK_WARNING}


async def _ledgers(ask: Ask) -> Data:
    return await ledgers.ledgers(ask)


async def _ledger(ask: Ask) -> Data:
    found = await ledgers.ledger(ask)
    return {"ledger": found, "picture": ledger_boxes(found)}


async def _entries(ask: Ask) -> Data:
    query = {**ask.query, "last": None, "password": None}
    found: Data = await ledgers.entries(Ask(ask.service, ask.who, ask.path, query, {}))
    by_schema = await _by_schema(ask, found["entries"])
    rows = [{**row, **_shown(row, ask.query["view"], by_schema)} for row in found["entries"]]
    return {**found, "entries": rows}


async def _entry(ask: Ask) -> Data:
    number = ask.path["entry"]
    query = {"first": number, "last": number, "limit": 1, "password": None}
    found: Data = {"entries": []}
    with contextlib.suppress(UnauthorizedError):  # its replicas are shown, its content is not
        found = await ledgers.entries(Ask(ask.service, ask.who, ask.path, query, {}))
    by_schema = await _by_schema(ask, found["entries"])
    rows = [{**row, **_shown(row, ask.query["view"], by_schema)} for row in found["entries"]]
    return {**await ledgers.entry_replicas(ask), "entry": next(iter(rows), None)}


async def _by_schema(ask: Ask, rows: Sequence[Mapping[str, Any]]) -> dict[int, Data] | str:
    """Return what the records in some entries are by their stream's schema, or why that is not."""
    if ask.query["view"] != "schema" or not rows:
        return {}
    ledger_id = ask.path["id"]
    metadata = await (await ask.service.client()).ledger_metadata(ledger_id)
    if (owner := stream_of(metadata.custom_metadata)) is None:
        return "the ledger does not say of which stream it is"
    try:
        stream = (await ask.service.streams.namespace(owner[0])).stream(owner[1])
        decoding = StreamDecoding(ask.service.decoding, stream, indent=2)
        await decoding.start()
        found = await entry_records(stream, ledger_id, rows[0]["entry_id"], rows[-1]["entry_id"])
    except (StreamError, ConfigError, LocalProtocolError) as error:
        return str(error)
    if found is None:
        return f"the ledger is no segment of the stream {owner[1]}"
    decoded = iter(await decoding.of([record for each in found.values() for record in each]))
    return {
        entry_id: {
            "records": [_record_shown(record, next(decoded)) for record in each],
            "as": f"records of {owner[1]} by its schema",
        }
        for entry_id, each in found.items()
    }


def _record_shown(record: Record, decoded: Decoded) -> Data:
    data = record.payload
    payload = records.shown_bytes(data)
    return {
        "slot": record.position.slot,
        "sequence_id": record.sequence_id,
        "reason": decoded.reason,
        "shown": _decoded(payload, "auto")["shown"] if decoded.text is None else decoded.text,
    }


def _shown(row: Mapping[str, Any], view: str, by_schema: dict[int, Data] | str) -> Data:
    """Return an entry as a person reads it, by a schema where that was wanted and can be."""
    if view != "schema":
        return _decoded(row, view)
    if isinstance(by_schema, str):
        return {**_decoded(row, "auto"), "reason": by_schema}
    if row["entry_id"] in by_schema:
        return by_schema[row["entry_id"]]
    return {**_decoded(row, "auto"), "reason": "no record begins in it that is decoded here"}


def _decoded(row: Mapping[str, Any], view: str) -> Data:
    """Return bytes as a person reads them: JSON where they are, else text, else hex."""
    text = row.get("text")
    data = text.encode() if text is not None else base64.b64decode(row["base64"])
    if view in ("auto", "json") and text is not None:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
            if isinstance(found, dict | list):
                return {"shown": _indented(found, _INDENTED_TIMES * len(text) + 1000), "as": "JSON"}
    if view != "hex" and text is not None and "\0" not in text:
        return {"shown": text, "as": "text"}
    return {"shown": hex_lines(data[:_HEX_BYTES]), "as": "hex"}


def _indented(value: object, length_max: int) -> str:
    """Return JSON with a line for each value.

    Raises:
        ValueError: It is longer, as deep values are, or no Unicode: half a surrogate pair.
        RecursionError: It is too deep.
    """
    pieces, length = [], 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        length += len(piece)
        if length > length_max:
            raise ValueError(length)
        pieces.append(piece)
    shown = "".join(pieces)
    shown.encode()  # as the page will be
    return shown


def hex_lines(data: bytes) -> str:
    """Return bytes as offsets, hexadecimal digits and characters."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):47}  {shown}")
    return "\n".join(lines)


async def _streams(ask: Ask) -> Data:
    found: Data = await streams.streams(ask)
    facts = {row["name"]: row for row in found.get("facts", ())}
    rows = [facts.get(name, {"name": name}) for name in found["streams"]]
    return {**found, "rows": rows, "namespace": ask.query["namespace"]}


async def _stream(ask: Ask) -> Data:
    found = await streams.stream(ask)
    parts: Any = found["partitions"]
    return {
        "stream": found,
        "pictures": {part["name"]: segment_boxes(part["segments"]) for part in parts},
        "cursors": (await streams.cursors(ask))["cursors"],
        "groups": (await streams.groups(ask))["groups"],
    }


async def _tail(ask: Ask) -> Data:
    one = await ask.service.streams.one(
        ask.query["namespace"], ask.path["name"], ask.query["partition"]
    )
    await one.info()
    async with one.reader("earliest" if ask.query["from"] == "earliest" else "latest",
                          tail=False) as reader:  # fmt: skip
        found = await reader.read(100, wait_s=None) if ask.query["from"] == "earliest" else []
    rows = [records.record_row(record) for record in found]
    if ask.query["decode"] is not None:
        decoding = StreamDecoding(ask.service.decoding, one)
        await decoding.start()
        for row, decoded in zip(rows, await decoding.of(found), strict=True):
            row |= {"decoded": decoded.text, "decode_error": decoded.reason}
    return {
        "name": ask.path["name"],
        "namespace": ask.query["namespace"],
        "partition": ask.query["partition"],
        "records": rows[::-1],
    }


async def _pipelines(ask: Ask) -> Data:
    found: Any = (await pipelines.pipelines(ask))["pipelines"]
    return {
        "pipelines": found,
        "namespace": ask.query["namespace"],
        "graphs": {each["name"]: graph_of(each["steps"]) for each in found},
    }


async def _recovery(ask: Ask) -> Data:
    query = {"limit": 200}
    queue = await cluster.underreplicated(Ask(ask.service, ask.who, {}, query, {}))
    return {"recovery": await cluster.recovery(ask), **queue}


async def _slow(ask: Ask) -> Data:
    found: Data = await bookies.slow(ask)
    for row in found["operations"]:
        row["where"] = where_it_went(row["stages_ms"], _STAGES_SHOWN)
        row["boxes"] = stage_boxes(row["stages_ms"], row["took_ms"], STAGES)
    return found


async def _metadata(ask: Ask) -> Data:
    found = await cluster.node(ask)
    path = str(found["path"])
    steps = [("/", "/")]
    for part in path.strip("/").split("/") if path != "/" else ():
        steps.append((part, f"{steps[-1][1].rstrip('/')}/{part}"))
    value = found["value"]
    shown = json.dumps(value, indent=2) if isinstance(value, dict) else value
    return {"node": found, "steps": steps, "shown": shown}


async def _jobs(ask: Ask) -> Data:
    return {"jobs": [job.row() for job in ask.service.jobs.list()]}


async def _audit(ask: Ask) -> Data:
    return {"changes": [change.row() for change in ask.service.audit.recent(200)]}


async def _tokens(ask: Ask) -> Data:
    return {"tokens": cluster.token_rows(ask)}


_BOOKIE_NAMES = {"bookie": Field("string", "", max_length=300)}
_LEDGER_NAMES = {"id": Field("integer", "", minimum=0, maximum=ID_MAX)}
_STREAM_NAMES = {"name": records.NAME}
_NAMESPACE = {"namespace": records.NAMESPACE}
_VIEWS = ("auto", "json", "text", "hex", "schema")

PAGES: tuple[Page, ...] = (
    Page("/ui", "Overview", "overview.html", _overview, "quorumbook status", "/api/v2/cluster",
         "overview", query={"fresh": Field("boolean", "", default=False)}, refresh_s=5),
    Page("/ui/clusters", "Clusters", "clusters.html", _clusters, "quorumbook context ls",
         "/api/v2/clusters", "clusters", refresh_s=5),
    Page("/ui/bookies", "Bookies", "bookies.html", _bookies, "quorumbook bookie ls",
         "/api/v2/bookies", "bookies", refresh_s=5),
    Page("/ui/bookies/{bookie}", "Bookie {bookie}", "bookie.html", _bookie,
         "quorumbook bookie ls --disks", "/api/v2/bookies/{bookie}", "bookies",
         names=_BOOKIE_NAMES,
         actions=("read-only-on", "read-only-off", "collect", "bookie-drain", "bookie-recover",
                  "bookie-decommission")),
    Page("/ui/ledgers", "Ledgers", "ledgers.html", _ledgers, "quorumbook ledger ls",
         "/api/v2/ledgers", "ledgers", query=ledgers.LIST_QUERY),
    Page("/ui/ledgers/{id}", "Ledger {id}", "ledger.html", _ledger,
         "quorumbook ledger show {id}", "/api/v2/ledgers/{id}", "ledgers", names=_LEDGER_NAMES,
         actions=("ledger-recover", "ledger-delete")),
    Page("/ui/ledgers/{id}/entries", "Entries of ledger {id}", "entries.html", _entries,
         "quorumbook ledger read {id} --first {first}", "/api/v2/ledgers/{id}/entries", "ledgers",
         names=_LEDGER_NAMES,
         query={"first": ledgers.ENTRIES_QUERY["first"],
                "limit": Field("integer", "", default=50, minimum=1, maximum=500),
                "view": Field("string", "", default="auto", choices=_VIEWS)}),
    Page("/ui/ledgers/{id}/entries/{entry}", "Entry {entry} of ledger {id}", "entry.html", _entry,
         "quorumbook ledger read {id} --first {entry} --last {entry}",
         "/api/v2/ledgers/{id}/entries/{entry}/replicas", "ledgers",
         names={**_LEDGER_NAMES, "entry": ledgers.ENTRY},
         query={"view": Field("string", "", default="auto", choices=_VIEWS)}),
    Page("/ui/streams", "Streams", "streams.html", _streams,
         "quorumbook stream ls --long --namespace {namespace}", "/api/v2/streams", "streams",
         query={**_NAMESPACE, "prefix": Field("string", "", max_length=500),
                "after": Field("string", "", max_length=500),
                "limit": Field("integer", "", default=100, minimum=1, maximum=1000)},
         actions=("stream-create",)),
    Page("/ui/tail/{name:path}", "Live tail of {name}", "tail.html", _tail,
         "quorumbook stream tail {name} --namespace {namespace}",
         "/api/v2/streams/{name}/records", "streams", names=_STREAM_NAMES,
         query={**_NAMESPACE, "partition": records.PARTITION, "decode": records.DECODE,
                "from": Field("string", "", default="latest", choices=("earliest", "latest"))}),
    Page("/ui/streams/{name:path}", "Stream {name}", "stream.html", _stream,
         "quorumbook stream show {name} --namespace {namespace}", "/api/v2/streams/{name}",
         "streams", names=_STREAM_NAMES, query=_NAMESPACE,
         actions=("stream-policy", "cursor-reset", "stream-truncate", "stream-delete")),
    Page("/ui/pipelines", "Pipelines", "pipelines.html", _pipelines,
         "quorumbook spark pipeline ls --namespace {namespace}", "/api/v2/pipelines", "pipelines",
         query=_NAMESPACE, refresh_s=5),
    Page("/ui/recovery", "Auto-recovery", "recovery.html", _recovery,
         "quorumbook recovery underreplicated", "/api/v2/recovery", "recovery",
         actions=("recovery-on", "recovery-off", "audit-now"), refresh_s=5),
    Page("/ui/slow", "Slow operations", "slow.html", _slow, "quorumbook bookie slow",
         "/api/v2/slow", "slow", query=bookies.SLOW_QUERY),
    Page("/ui/jobs", "Jobs", "jobs.html", _jobs, "curl {url}/api/v2/jobs", "/api/v2/jobs", "jobs",
         actions=("job-cancel",), refresh_s=2),
    Page("/ui/metadata", "Metadata", "metadata.html", _metadata,
         "quorumbook metadata dump {uri} FILE", "/api/v2/metadata", "metadata",
         query={"path": cluster.NODE_PATH}),
    Page("/ui/audit", "Audit log", "audit.html", _audit, "curl {url}/api/v2/audit", "/api/v2/audit",
         "audit", role=Role.OPERATOR),
    Page("/ui/tokens", "Tokens", "tokens.html", _tokens, "quorumbook token ls", "/api/v2/tokens",
         "tokens", role=Role.ADMIN, actions=("token-revoke",)),
)  # fmt: skip

#: Name, address, what it says, and its key after ``g``.
NAVIGATION = (
    ("clusters", "/ui/clusters", "Clusters", "c"),
    ("overview", "/ui", "Overview", "o"),
    ("bookies", "/ui/bookies", "Bookies", "b"),
    ("ledgers", "/ui/ledgers", "Ledgers", "l"),
    ("streams", "/ui/streams", "Streams", "s"),
    ("pipelines", "/ui/pipelines", "Pipelines", "p"),
    ("recovery", "/ui/recovery", "Auto-recovery", "r"),
    ("slow", "/ui/slow", "Slow operations", "w"),
    ("jobs", "/ui/jobs", "Jobs", "j"),
    ("metadata", "/ui/metadata", "Metadata", "m"),
    ("audit", "/ui/audit", "Audit", "a"),
    ("tokens", "/ui/tokens", "Tokens", "t"),
)
