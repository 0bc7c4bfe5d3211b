"""``fsck-meta``: whether what the metadata say agrees with itself; no bookie is asked.

    kind                what it means                                              fixed by --fix
    unreadable_ledger   the metadata of a ledger cannot be understood
    bad_fragments       a closed ledger ends before its last fragment begins,
                        or a bookie stands twice in an ensemble
    unknown_bookie      an ensemble names a bookie that has no cookie
    unreferenced        a ledger of a stream that no segment and no allocation names
    missing_ledger      a segment whose ledger is gone, and that has no files
    stale_files         files are listed for a segment that is not there
    foreign_files       the files listed for a segment are those of another ledger
    unreadable_files    a list of files cannot be understood
    stale_mark          a ledger that is gone stands among those that lack copies    yes
    unreadable_mark     what marks a ledger as lacking copies cannot be understood
    no_cookie           a registered bookie without a cookie

A unit is some ledgers, or one stream; what concerns the cluster as a whole is one more.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from quorumbook.client.context import client_store
from quorumbook.client.writing.unwritten import STREAM_COMPONENT
from quorumbook.errors import (
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
)
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.ledger_chunks import ledger_chunks, ledgers_of
from quorumbook.spark.jobs.options import FsckOptions
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams import Namespace
from quorumbook.streams.compaction import kept_ledgers
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.format.segment_text import Truncation
from quorumbook.streams.stream_context import StreamContext, stream_context
from quorumbook.streams.tier.manifest import Manifest
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.transactions import Place

_STREAM_BYTES = 5000


async def plan(namespace: Namespace, options: FsckOptions) -> JobPlan:
    """Return what is to be looked at.

    Args:
        namespace: Whose streams; ledgers of other namespaces are not looked for in it.
        options: How they are looked at.
    """
    units = [Unit("cluster", 0, {"what": "cluster", "fix": options.fix})]
    units += [
        Unit(f"stream {name}", _STREAM_BYTES, {"what": "stream", "stream": name})
        async for name in namespace.streams()
    ]
    for unit in await ledger_chunks(namespace.client):
        arguments = {
            "what": "ledgers", "namespace": namespace.path, "min_age_s": options.min_age_s,
            **unit.arguments,
        }  # fmt: skip
        units.append(Unit(f"ledgers {unit.key}", unit.size_bytes, arguments))
    return JobPlan("fsck-meta", units, work, lambda result: bool(result["findings"]))


async def work(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Look at one unit."""
    del pace
    look = {"cluster": _cluster, "stream": _stream, "ledgers": _ledgers}[arguments["what"]]
    return {"findings": await look(cluster, arguments)}


def _row(kind: str, subject: object, detail: str = "", *, fixed: bool = False) -> dict[str, Any]:
    return {"kind": kind, "subject": str(subject), "detail": detail, "fixed": fixed}


async def _cluster(cluster: ClusterClient, arguments: Values) -> list[dict[str, Any]]:
    client = cluster.client
    cookies = set(await CookieStore(client_store(client)).list())
    writable, read_only = await client.bookies()
    found = [
        _row("no_cookie", bookie_id, "registered, and without a cookie")
        for bookie_id in sorted((writable | read_only) - cookies)
    ]
    queue = UnderreplicationQueue(client_store(client), "fsck-meta")
    try:
        damaged: list[MetadataFormatError] = []
        marked = [mark.ledger_id async for mark in queue.list(damaged)]
        found += [_row("unreadable_mark", str(e.ledger_id), str(e)) for e in damaged]
        for ledger_id in marked:
            try:
                await client.ledger_metadata(ledger_id)
            except MetadataFormatError:
                continue  # a finding of the ledger's unit
            except NoSuchLedgerInMetadataError:
                is_fixed = arguments["fix"] and await _unmark(queue, ledger_id)
                found.append(_row("stale_mark", ledger_id, "the ledger is gone", fixed=is_fixed))
    finally:
        queue.close()
    return found


async def _unmark(queue: UnderreplicationQueue, ledger_id: int) -> bool:
    work = await queue.take_this(ledger_id)
    return work is not None and await queue.done(work)


async def _stream(cluster: ClusterClient, arguments: Values) -> list[dict[str, Any]]:
    namespace = await cluster.opened_namespace()
    name = arguments["stream"]
    context = stream_context(namespace.stream(name))
    tier = TierNodes(context.nodes)
    try:
        segments = await context.nodes.segments()
    except NoSuchNodeError:
        return []  # deleted since it was listed
    numbers = await tier.numbers()
    found, lists = await _lists(name, tier, numbers)
    for segment in segments:
        if segment.truncation is Truncation.TRUNCATED:
            continue
        try:
            await cluster.client.ledger_metadata(segment.ledger_id)
        except NoSuchLedgerInMetadataError:
            manifest = lists.get(segment.number)
            if (
                manifest is None
                or not manifest.is_readable
                or manifest.ledger_id != segment.ledger_id
            ):
                detail = f"segment {segment.number}: ledger {segment.ledger_id} is gone"
                found.append(_row("missing_ledger", name, detail))
    ledgers = {segment.number: segment.ledger_id for segment in segments}
    for number in numbers:
        if number not in ledgers:
            found.append(_row("stale_files", name, f"there is no segment {number}"))
        elif number in lists and lists[number].ledger_id != ledgers[number]:
            found += await _foreign_files(context, number)
    return found


async def _lists(
    stream: str, tier: TierNodes, numbers: list[int]
) -> tuple[list[dict[str, Any]], dict[int, Manifest]]:
    found, lists = [], {}
    for number in numbers:
        try:
            stored = await tier.read(number)
        except (CorruptRecordsError, UnsupportedFormatError, MetadataFormatError) as error:
            found.append(_row("unreadable_files", stream, f"segment {number}: {error}"))
            continue
        if stored is not None:
            lists[number] = stored.manifest
    return found, lists


async def _foreign_files(context: StreamContext, number: int) -> list[dict[str, Any]]:
    """Look again: the segment may have got its number, or its list, since they were read."""
    segments = {each.number: each for each in await context.nodes.segments(first=number)}
    stored = await TierNodes(context.nodes).read(number)
    if stored is None or number not in segments:
        return []
    own, listed = segments[number].ledger_id, stored.manifest.ledger_id
    if own == listed:
        return []
    detail = f"segment {number} has ledger {own}; its files are those of ledger {listed}"
    return [_row("foreign_files", context.name, detail)]


async def _ledgers(cluster: ClusterClient, arguments: Values) -> list[dict[str, Any]]:
    cookies = set(await CookieStore(client_store(cluster.client)).list())
    now_ms = client_store(cluster.client).env.clock.wall_ms()
    references: dict[str, set[int] | None] = {}
    found = []
    async for ledger_id, metadata in ledgers_of(cluster.client, arguments["ids"]):
        if isinstance(metadata, str):
            found.append(_row("unreadable_ledger", ledger_id, metadata))
            continue
        found += _fragment_problems(metadata)
        members = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        if members - cookies:
            detail = ", ".join(sorted(members - cookies))
            found.append(_row("unknown_bookie", ledger_id, detail))
        stream = _stream_of(metadata, arguments["namespace"])
        if stream is None or now_ms - (metadata.ctime_ms or 0) < arguments["min_age_s"] * 1000:
            continue
        if stream not in references:
            references[stream] = await _referenced(cluster, stream)
        named = references[stream]
        if named is None or ledger_id not in named:
            # It may have been made, or its segment begun, since the list was read.
            named = references[stream] = await _referenced(cluster, stream)
            if named is None or ledger_id not in named:
                found.append(_row("unreferenced", ledger_id, f"stream {stream} does not name it"))
    return found


def _fragment_problems(metadata: LedgerMetadata) -> list[dict[str, Any]]:
    found = []
    last = metadata.last_fragment.first_entry_id
    if metadata.is_closed and metadata.last_entry_id < last - 1:
        detail = f"ends at {metadata.last_entry_id}, its last fragment begins at {last}"
        found.append(_row("bad_fragments", metadata.ledger_id, detail))
    for fragment in metadata.fragments:
        if len(set(fragment.ensemble)) < len(fragment.ensemble):
            detail = f"a bookie stands twice in the ensemble from {fragment.first_entry_id} on"
            found.append(_row("bad_fragments", metadata.ledger_id, detail))
    return found


def _stream_of(metadata: LedgerMetadata, namespace: str) -> str | None:
    custom = metadata.custom_metadata
    if custom.get("component") != STREAM_COMPONENT or custom.get("namespace") != namespace.encode():
        return None
    return custom.get("stream", b"").decode(errors="backslashreplace")


async def _referenced(cluster: ClusterClient, stream: str) -> set[int] | None:
    """Return the ledgers that a stream names, or named until it was compacted.

    None: there is no such stream.
    """
    namespace = await cluster.opened_namespace()
    nodes = stream_context(namespace.stream(stream)).nodes
    if not await nodes.exists():
        return None
    named = await kept_ledgers(Place(cluster.client, namespace))
    named |= {segment.ledger_id for segment in await nodes.segments()}
    allocated = (await nodes.read_state()).allocated
    return named if allocated is None else named | {allocated}


def conclude(report: Report) -> None:
    """Sum the results up; what was fixed is no finding any more."""
    rows = [row for _, result in sorted(report.results.items()) for row in result["findings"]]
    report.findings = sum(not row["fixed"] for row in rows)
    report.summary["found"] = dict(Counter(row["kind"] for row in rows))
    report.summary["fixed"] = sum(row["fixed"] for row in rows)
    report.summary["rows"] = rows
