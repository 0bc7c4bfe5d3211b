"""``offload``, ``restore``, ``tier-verify``: a segment of a stream is a unit.

Entries go from bookies into Parquet in the very task, by pyarrow; what a segment's files go
through is in ``streams.tier``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import LocalProtocolError, NoSuchLedgerInMetadataError
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.options import OffloadOptions
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.jobs.streams import chosen_streams
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.rows.decoding import decoder_of
from quorumbook.streams import Namespace
from quorumbook.streams.errors import (
    CorruptRecordsError,
    FilesUnavailableError,
    SchemaNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.frames.parts import FramePart
from quorumbook.streams.frames.record_file import write_records
from quorumbook.streams.partitions.partition_node import partition_count
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier import copying, moving
from quorumbook.streams.tier.manifest import Manifest, TierState
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.tier.places import check_place
from quorumbook.streams.tier.worker import in_worker


async def plan_offload(namespace: Namespace, options: OffloadOptions) -> JobPlan:
    """Return the segments to offload, and those whose bookies' copy may go by now.

    Raises:
        ConfigError: files cannot be put there.
    """
    env = client_store(namespace.client).env
    await in_worker(env, lambda: check_place(options.to))
    now_ms = env.clock.wall_ms()
    older_ms, lag_ms = (round(s * 1000) for s in (options.older_than_s, options.delete_lag_s))
    arguments = {
        "to": options.to, "delete_lag_s": options.delete_lag_s, "decodes": options.decodes
    }  # fmt: skip
    units = []
    for name in await chosen_streams(namespace, options.streams):
        context = stream_context(namespace.stream(name))
        nodes = TierNodes(context.nodes)
        for segment in await context.nodes.segments():
            if not _is_settled(segment) or now_ms - segment.completed_at_ms < older_ms:
                continue
            stored = await nodes.read(segment.number)
            state = None if stored is None else stored.manifest.state
            if state in (TierState.RESTORING, TierState.REMOVING):
                continue
            size = await _size_of(namespace.client, segment)
            if state is TierState.DELETED and size is None:
                continue  # nobody was interrupted before its ledger was gone too
            size = size or 0
            if state is None and size < options.min_bytes:
                continue
            if (
                stored is not None
                and state is TierState.LIVE
                and not stored.manifest.may_delete(now_ms, lag_ms)
            ):
                continue
            units.append(_unit(name, segment.number, size, arguments))
    return JobPlan("offload", units, offload, is_all_left=True)


def _is_settled(segment: SegmentMetadata) -> bool:
    return not segment.is_in_progress and segment.truncation is not Truncation.TRUNCATED


async def _size_of(client: BookKeeper, segment: SegmentMetadata) -> int | None:
    try:
        return (await client.ledger_metadata(segment.ledger_id)).length
    except NoSuchLedgerInMetadataError:
        return None


def _unit(stream: str, number: int, size_bytes: int, arguments: dict[str, Any]) -> Unit:
    return Unit(
        f"{stream}#{number}", size_bytes, {"stream": stream, "segment": number, **arguments}
    )


async def plan_restore(
    namespace: Namespace, streams: Sequence[str], segments: Sequence[int]
) -> JobPlan:
    """Return the segments that have files.

    Args:
        namespace: Of the streams.
        streams: Which; empty: all.
        segments: Only these numbers; empty: all.
    """
    units = await _with_files(namespace, streams, segments)
    return JobPlan("restore", units, restore, is_all_left=True)


async def plan_verify(namespace: Namespace, streams: Sequence[str]) -> JobPlan:
    """Return the segments whose files are to be read again."""
    units = await _with_files(namespace, streams, ())
    return JobPlan("tier-verify", units, verify, lambda result: bool(result["problem"]))


async def _with_files(
    namespace: Namespace, streams: Sequence[str], segments: Sequence[int]
) -> list[Unit]:
    units = []
    for name in await chosen_streams(namespace, streams):
        nodes = TierNodes(stream_context(namespace.stream(name)).nodes)
        numbers = [n for n in await nodes.numbers() if not segments or n in segments]
        for number, stored in zip(numbers, await gather_bounded(nodes.read, numbers), strict=True):
            if stored is not None and stored.manifest.is_readable:
                size = sum(each.size_bytes for each in stored.manifest.parts)
                units.append(_unit(name, number, size, {}))
    return units


# On executors ------------------------------------------------------------------------------------


async def _segment(cluster: ClusterClient, pace: Pace, arguments: Values) -> moving.SegmentInTier:
    namespace = await cluster.opened_namespace()
    context = stream_context(namespace.stream(arguments["stream"]))
    number = arguments["segment"]
    for segment in await context.nodes.segments(first=number):
        if segment.number == number:
            return moving.SegmentInTier(context=context, metadata=segment, pace=pace.take)
    raise LocalProtocolError(f"stream {context.name} has no segment {number} any more")


async def offload(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Offload one segment, and delete the bookies' copy if it is time."""
    segment = await _segment(cluster, pace, arguments)
    undecoded = 0

    async def put_records(location: str) -> None:
        nonlocal undecoded
        undecoded = await _write_records(cluster, segment, location)

    manifest = await moving.offload(
        segment, arguments["to"], put_beside=put_records if arguments["decodes"] else None
    )
    is_gone = await moving.delete_copy(segment, delay_s=arguments["delete_lag_s"])
    return {**_facts(manifest), "bookie_copy_deleted": is_gone, "undecoded": undecoded}


async def _write_records(
    cluster: ClusterClient, segment: moving.SegmentInTier, location: str
) -> int:
    """Write a segment's records beside its entries, if its stream has a schema."""
    name, partition = segment.context.name, -1
    above, _, number = name.rpartition("/p")
    namespace = await cluster.opened_namespace()
    if number.isdecimal() and await partition_count(namespace, above) is not None:
        name, partition = above, int(number)
    try:
        decoder = await decoder_of(cluster, name)
    except SchemaNotFoundError:
        return 0
    part = FramePart(segment.context, name, partition)
    return await write_records(segment.env, part, segment.metadata, decoder, location)


async def restore(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Restore one segment's ledger."""
    return {"entries": await moving.restore(await _segment(cluster, pace, arguments))}


async def verify(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Read one segment's files again.

    Raises:
        FilesUnavailableError: they cannot be read now; a file that is not there is a finding.
    """
    segment = await _segment(cluster, pace, arguments)
    stored = await segment.nodes.read(segment.number)
    if stored is None or not stored.manifest.is_readable:
        return {"entries": 0, "files": 0, "file_bytes": 0, "problem": ""}
    problem = ""
    try:
        await copying.verify(segment.env, stored.manifest)
    except (CorruptRecordsError, UnsupportedFormatError) as error:
        # A file of another version than its list, which was read, is no whole one either.
        problem = str(error)
    except FilesUnavailableError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        problem = str(error)
    return {**_facts(stored.manifest), "problem": problem}


def _facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "entries": manifest.ledger.last_entry_id + 1,
        "files": len(manifest.parts),
        "file_bytes": sum(part.size_bytes for part in manifest.parts),
    }


def conclude(report: Report) -> None:
    """Sum the results up; what is wrong with files comes out segment by segment."""
    results = report.results
    report.summary["entries"] = sum(result["entries"] for result in results.values())
    for name in ("files", "file_bytes"):
        report.summary[name] = sum(result.get(name, 0) for result in results.values())
    report.summary["undecoded"] = sum(each.get("undecoded", 0) for each in results.values())
    report.summary["bookie_copies_deleted"] = sum(
        result.get("bookie_copy_deleted", False) for result in results.values()
    )
    rows = [
        {"segment": key, "problem": result["problem"]}
        for key, result in sorted(results.items())
        if result.get("problem")
    ]
    report.summary["rows"] = rows
