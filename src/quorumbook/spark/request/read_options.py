"""What reading can be told; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from quorumbook.config import Kind
from quorumbook.errors import ConfigError
from quorumbook.spark.connection import CONNECTION_OPTIONS, Connection
from quorumbook.spark.options import READS, WRITES, SourceOptions, Use, option, parse
from quorumbook.spark.request.selection import Selected, Selection, parse_selection
from quorumbook.spark.request.where import EARLIEST, LATEST, Where, parse_where

_MB = 1024 * 1024
_STREAMING_TARGET_BYTES = 32 * _MB

#: What reading and writing have in common.
STREAM = option("stream", Kind.TEXT, "", "The stream; when writing, the one all rows go to.")

TXN_ROOT = option(
    "txnRoot", Kind.TEXT, "",
    "Where in the metadata tree applications are, instead of in the namespace.",
    (Use.READ, *WRITES),
)  # fmt: skip

READ_OPTIONS = (
    TXN_ROOT,
    STREAM,
    option("streams", Kind.TEXT, "", "Streams, with commas between.", READS),
    option(
        "streamPattern", Kind.TEXT, "",
        "Reads the streams whose whole name matches; of a partitioned stream, all partitions.",
        READS,
    ),
    option("ledgerIds", Kind.TEXT, "", "Ledgers: ids and FIRST-LAST with commas; * is all.", READS),
    option(
        "ledgerFilter", Kind.TEXT, "",
        "KEY=VALUE, with commas: ledgers with this custom metadata.", READS,
    ),
    option(
        "startingOffsets", Kind.TEXT, "",
        "Where to begin: earliest (a batch), latest (a query), or JSON that maps names to"
        " numbers, or to `txid:NUMBER`.", READS,
    ),
    option(
        "endingOffsets", Kind.TEXT, "latest",
        "The end of a batch, not included: latest, or JSON that maps names to numbers, or to "
        "`txid:NUMBER`.",
        (Use.READ,),
    ),
    option(
        "startingTimestamp", Kind.INTEGER, -1,
        "Begin with the first record that was appended at this time, in ms since 1970, or later.",
        READS,
    ),
    option(
        "endingTimestamp", Kind.INTEGER, -1,
        "End with the last record that was appended before this time.", (Use.READ,),
    ),
    option(
        "startingOffsetsByTimestamp", Kind.TEXT, "",
        "The same as JSON that maps names to times.", READS,
    ),
    option(
        "endingOffsetsByTimestamp", Kind.TEXT, "",
        "The same as JSON that maps names to times.", (Use.READ,),
    ),
    option(
        "startingOffsetsByTimestampStrategy", Kind.TEXT, "error",
        "Where nothing was appended at that time or later: an error, or what comes next.",
        READS, choices=("error", "latest"),
    ),
    option(
        "failOnDataLoss", Kind.SWITCH, True,
        "If true, it is an error when records that are to be read were truncated, deleted or made "
        "again; if false, the query goes on with the records that are left.", READS,
    ),
    option(
        "dropUnselected", Kind.SWITCH, False,
        "What the checkpoint has read and the options do not select any more: left out, instead "
        "of an error.", (Use.READ_STREAM,),
    ),
    option(
        "onCorrupt", Kind.TEXT, "fail",
        "Entries damaged on every bookie: an error, a row of **null**s with `_error`, or nothing.",
        READS, choices=("fail", "null", "skip"),
    ),
    option(
        "compat", Kind.TEXT, "native",
        "`kafka` has the columns of Kafka's source.", READS, choices=("native", "kafka"),
    ),
    option(
        "minPartitions", Kind.INTEGER, 1,
        "Read with at least this many tasks, if there are as many entries.", READS, minimum=1,
    ),
    option(
        "maxRecordsPerPartition", Kind.INTEGER, 0,
        "The largest number of records that one task reads, approximately; 0 means no limit.",
        READS, minimum=0,
    ),
    option(
        "maxEntriesPerTrigger", Kind.INTEGER, 0,
        "A batch reads at most this many entries; 0: no limit.", (Use.READ_STREAM,), minimum=0,
    ),
    option(
        "maxRecordsPerTrigger", Kind.INTEGER, 0,
        "At most this many records in a batch, rounded up to whole entries.",
        (Use.READ_STREAM,), minimum=0,
    ),
    option(
        "maxBytesPerTrigger", Kind.SIZE, 0,
        "A batch reads at most this many bytes, as stored; 0: no limit.", (Use.READ_STREAM,),
        minimum=0,
    ),
    option(
        "targetBatchTime", Kind.DURATION, 0.0,
        "Batches are as large as the query, its sink included, gets done in this time; 0 is any "
        "size. The value must be at least the trigger's interval.", (Use.READ_STREAM,), minimum=0,
    ),
    option(
        "minEntriesPerTrigger", Kind.INTEGER, 0,
        "Wait for this many entries before a batch …", (Use.READ_STREAM,), minimum=0,
    ),
    option(
        "maxTriggerDelay", Kind.DURATION, 900.0,
        "… but not for longer than this.", (Use.READ_STREAM,), minimum=0,
    ),
    option(
        "cursor", Kind.TEXT, "",
        "In each stream, a durable cursor of this name follows the records that the query has "
        "read. A new query begins at the cursor if the cursor exists.", (Use.READ_STREAM,),
    ),
    option(
        "newStreams", Kind.TEXT, "earliest",
        "Where to begin in streams that appear while the query runs.",
        (Use.READ_STREAM,), choices=("earliest", "latest"),
    ),
    option(
        "targetPartitionBytes", Kind.SIZE, 128 * _MB,
        "How much one task reads, about; 32M in a query that goes on, 128M with `availableNow`.",
        READS, minimum=1,
    ),
    option(
        "maxBatchBytes", Kind.SIZE, 2 * _MB,
        "Payload of one Arrow batch; one row may be larger.", READS, minimum=1, maximum=1 << 30,
    ),
    option(
        "maxBatchRows", Kind.INTEGER, 10_000,
        "Rows of one Arrow batch.", READS, minimum=1, maximum=1 << 20,
    ),
    option(
        "openMode", Kind.TEXT, "norecovery",
        "Ledgers that are not closed: read up to the last add confirmed, refused, or "
        "**recover**ed, which fences their writers.",
        (Use.READ,), choices=("norecovery", "closedOnly", "recover"),
    ),
    option(
        "replica", Kind.TEXT, "any",
        "Of ledgers: read the copy of one bookie alone, by its id, or by its place among those "
        "that should hold an entry, from 0; damaged and missing ones are for `onCorrupt`.",
        (Use.READ,),
    ),
    option(
        "decode", Kind.TEXT, "no",
        "`schema` has the fields of the stream's schema as columns, in place of `value`.",
        READS, choices=("no", "schema"),
    ),
    option(
        "schemaVersion", Kind.INTEGER, 0,
        "With decode: as which version of the schema; 0 is the last one when the read begins.",
        READS, minimum=0,
    ),
    option(
        "onBadRecord", Kind.TEXT, "fail",
        "With decode, records that the schema does not fit: an error, a row of **null** fields "
        "with `value` and `_error`, or dropped, with their number in the log.",
        READS, choices=("fail", "null", "drop"),
    ),
    option(
        "includeHeaders", Kind.SWITCH, False,
        "Whether `headers` is among the columns without being named.", READS,
    ),
)  # fmt: skip

_NOT_FOR_TOPICS = {
    "compat": "their columns are not those of Kafka",
    "cursor": "a query keeps its place in its checkpoint",
    "decode": "the column value has the bytes, and schema_version the version of their schema",
    "includeHeaders": "the column properties has what a message carries",
    "maxRecordsPerTrigger": "nobody counts their messages; maxEntriesPerTrigger limits a batch",
    "openMode": "a ledger that a broker writes is read up to what is confirmed, and left alone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one reader."""

    use: Use
    connection: Connection
    selection: Selection
    starting: Where
    ending: Where
    #: Whether it is an error if nothing was appended at the time to begin with, or later.
    is_strict_time: bool
    fails_on_data_loss: bool
    #: Whether what a checkpoint has and the selection does not is left out.
    drops_unselected: bool
    on_corrupt: Literal["fail", "null", "skip"]
    is_kafka_like: bool
    min_partitions: int
    max_records_per_partition: int
    max_entries: int
    max_records: int
    max_bytes: int
    #: 0: however long a batch takes.
    target_batch_s: float
    min_entries: int
    max_trigger_delay_s: float
    cursor: str
    new_streams: Literal["earliest", "latest"]
    transactions_root: str
    target_partition_bytes: int
    #: The same of a query that reads what there is and ends, as a batch does.
    ending_partition_bytes: int
    max_batch_bytes: int
    max_batch_rows: int
    open_mode: Literal["norecovery", "closedOnly", "recover"]
    includes_headers: bool
    #: The stream whose schema records are decoded by; empty: they are not.
    decoded_stream: str
    #: 0: the last one.
    schema_version: int
    on_bad_record: Literal["fail", "null", "drop"]
    #: A bookie's id, or a place in an entry's write set as a number; empty: any.
    replica: str

    @classmethod
    def of(cls, given: Mapping[str, str], use: Use | None = None) -> ReadOptions:
        """Read them; before it is known what for, all uses are accepted.

        Raises:
            ConfigError: see ``options.parse``.
        """
        options = parse(given, (*CONNECTION_OPTIONS, *READ_OPTIONS), use)
        path = next((value for name, value in given.items() if name.lower() == "path"), "")
        selection = parse_selection(path, options)
        if selection.kind is Selected.PULSAR:
            _check_for_topics(options)
        mode = options.text("openMode")
        new_streams = options.text("newStreams")
        on_corrupt = options.text("onCorrupt")
        on_bad_record = options.text("onBadRecord")
        return cls(
            use=use or Use.READ,
            connection=Connection.of(options),
            selection=selection,
            starting=_where(
                options, "starting", EARLIEST if use is not Use.READ_STREAM else LATEST
            ),
            ending=_where(options, "ending", LATEST),
            is_strict_time=options.text("startingOffsetsByTimestampStrategy") == "error",
            fails_on_data_loss=options.flag("failOnDataLoss"),
            drops_unselected=options.flag("dropUnselected"),
            on_corrupt=on_corrupt,  # type: ignore[arg-type]
            is_kafka_like=options.text("compat") == "kafka",
            min_partitions=options.integer("minPartitions"),
            max_records_per_partition=options.integer("maxRecordsPerPartition"),
            max_entries=options.integer("maxEntriesPerTrigger"),
            max_records=options.integer("maxRecordsPerTrigger"),
            max_bytes=options.integer("maxBytesPerTrigger"),
            target_batch_s=options.seconds("targetBatchTime"),
            min_entries=options.integer("minEntriesPerTrigger"),
            max_trigger_delay_s=options.seconds("maxTriggerDelay"),
            cursor=options.text("cursor"),
            new_streams=new_streams,  # type: ignore[arg-type]
            transactions_root=options.text("txnRoot"),
            target_partition_bytes=(
                _STREAMING_TARGET_BYTES
                if use is Use.READ_STREAM and not options.is_given("targetPartitionBytes")
                else options.integer("targetPartitionBytes")
            ),
            ending_partition_bytes=options.integer("targetPartitionBytes"),
            max_batch_bytes=options.integer("maxBatchBytes"),
            max_batch_rows=options.integer("maxBatchRows"),
            open_mode=mode,  # type: ignore[arg-type]
            includes_headers=options.flag("includeHeaders"),
            decoded_stream=_decoded_stream(options, selection),
            schema_version=options.integer("schemaVersion"),
            on_bad_record=on_bad_record,  # type: ignore[arg-type]
            replica=_replica(options, selection),
        )


def _check_for_topics(options: SourceOptions) -> None:
    for name, why in _NOT_FOR_TOPICS.items():
        if options.is_given(name):
            raise ConfigError(f"{name} is not for topics of Pulsar: {why}")


def _decoded_stream(options: SourceOptions, selection: Selection) -> str:
    if options.text("decode") == "no":
        for name in "schemaVersion", "onBadRecord":
            if options.is_given(name):
                raise ConfigError(
                    f"{name} needs decode=schema: it is about records that are decoded"
                )
        return ""
    if len(selection.streams) != 1:
        raise ConfigError(
            f"decode=schema reads one stream, by its schema, and not {selection}: load each by "
            "itself and unite them"
        )
    if options.text("compat") == "kafka":
        raise ConfigError("decode=schema has columns of its own, so compat=kafka is not for it")
    return selection.streams[0]


def _replica(options: SourceOptions, selection: Selection) -> str:
    wanted = options.text("replica")
    if wanted == "any":
        return ""
    if selection.kind is not Selected.LEDGER:
        raise ConfigError("replica is for ledgers: load('ledger:...')")
    if not wanted:
        raise ConfigError("replica is any, a bookie's id, or 0 for an entry's first copy")
    return wanted


def _where(options: SourceOptions, end: str, default: int) -> Where:
    time_ms = options.integer(f"{end}Timestamp")
    return parse_where(
        end,
        options.text(f"{end}Offsets"),
        options.text(f"{end}OffsetsByTimestamp"),
        None if time_ms < 0 else time_ms,
        default=default,
    )
