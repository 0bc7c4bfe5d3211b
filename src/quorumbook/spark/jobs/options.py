"""What each job of ``quorumbook spark`` can be told, declared once; pure.

The options of the commands are made of these classes (``cli.values.derived``), values are checked
against them, and a job that is resumed is compared by them (``arguments``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from quorumbook.env.shown import HIDDEN, names_secret, shown
from quorumbook.errors import ConfigError
from quorumbook.options import Options, option, required

USAGE_GROUPS = ("bookie", "stream", "application", "day", "state")
_HOUR_S, _DAY_S = 3600.0, 86400.0
_MB = 1 << 20
_TIME_FORMS = "a time of this place such as 2026-11-22 or 2026-11-22T14:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions(Options):
    """What one job is told beside what every job is."""

    SECTION: ClassVar = ""
    #: What a job may be told otherwise when it is resumed: its units are the same.
    PASSING: ClassVar[tuple[str, ...]] = ()

    def arguments(self) -> dict[str, Any]:
        """Return what the job depends on, by the names that people know, without secrets.

        It is kept in a file.
        """
        return {
            each.flag.lstrip("-"): list(value) if isinstance(value, tuple) else _shown(value)
            for each in self.declared()
            if each.name not in self.PASSING
            for value in [getattr(self, each.name)]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJobOptions(JobOptions):
    """What a job about streams is told."""

    namespace: str = option("/streams", "The namespace the streams are in.", metavar="PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeStreamsOptions(StreamJobOptions):
    """What a job about all streams, or some of them, is told."""

    streams: tuple[str, ...] = option(
        (), "Only this one; may be repeated.", word="--stream", metavar="NAME"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions(StreamJobOptions):
    """What a job that follows streams in batches is told."""

    batch_bytes: int = option(
        1 << 30, "Bytes of records that become visible in one step, about.", minimum=1
    )
    follows: bool = option(
        False, "Go on with what comes, until interrupted.", word="--follow"
    )  # fmt: skip
    every_s: float = option(10.0, "With --follow: look so often for what came.", minimum=0)

    @property
    def look_every_s(self) -> float | None:
        """How often to look for what came; None: end where nothing is due."""
        return self.every_s if self.follows else None


# Upkeep ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(JobOptions):
    """Which copies are read."""

    PASSING: ClassVar = ("fail_fast", "out")

    ledgers: str = option("", "Only these; ids with commas between.", metavar="IDS")
    bookie: str = option(
        "", "Only ledgers of which this one holds something.", metavar="BOOKIE"
    )  # fmt: skip
    sample_percent: float = option(
        100.0, "The share of all ranges of entries to check; the same ranges each time.",
        minimum=0, maximum=100, word="--sample", metavar="PERCENT",
    )  # fmt: skip
    fail_fast: bool = option(False, "Begin nothing more once something was found.")
    out: str = option("", "Write the findings as JSON lines.", metavar="FILE")

    def check_together(self) -> None:
        """Refuse what is not a list of ids."""
        _ = self.ledger_ids

    @property
    def ledger_ids(self) -> list[int]:
        """The ledgers to read; empty: all."""
        return _numbers("--ledgers", self.ledgers.split(","), "ids of ledgers with commas between")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageOptions(JobOptions):
    """How ledgers are counted."""

    group_by: str = option("bookie", "What is counted together.", choices=USAGE_GROUPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckOptions(StreamJobOptions):
    """What is looked at."""

    fix: bool = option(False, "Mend what can be mended without harm.")
    min_age_s: float = option(
        _HOUR_S,
        "Let younger ledgers be that nothing names: their writers may be about to.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanOptions(StreamJobOptions):
    """Which transactions nobody can commit any more."""

    ttl_s: float = option(
        _DAY_S, "Transactions that were not touched for so long have no owner any more.", minimum=0
    )
    root: str = option(
        "", "Where applications are in the metadata tree; in the namespace if not given.",
        word="--txn-root", metavar="PATH",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions(SomeStreamsOptions):
    """Which segments are merged."""

    target_bytes: int = option(
        128 * _MB,
        "Merged segments are not larger; small ones have less than an eighth of it.",
        minimum=1,
    )
    older_than_s: float = option(
        _DAY_S, "Only segments that were completed so long ago.", minimum=0
    )
    keep_s: float = option(
        _HOUR_S, "Keep the old ledgers for so long; a later run deletes them.",
        minimum=0, word="--delete-lag",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadOptions(SomeStreamsOptions):
    """Which segments become files, and where."""

    to: str = required("Path or URI of a directory that all can reach.", metavar="DIR")
    older_than_s: float = option(0.0, "Only segments that were completed so long ago.", minimum=0)
    min_bytes: int = option(0, "Only segments with at least this many bytes.", minimum=0)
    delete_lag_s: float = option(
        4 * _HOUR_S, "Keep the bookies' copy for so long; a later run deletes it.", minimum=0
    )
    decodes: bool = option(
        False,
        "Where a stream has a schema, put its records into files of their own, beside.",
        word="--decode",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions(SomeStreamsOptions):
    """Which segments go back to bookies."""

    segments: tuple[str, ...] = option(
        (), "Only segments of this number; may be repeated.", word="--segment", metavar="N"
    )

    def check_together(self) -> None:
        """Refuse what is not a number."""
        _ = self.segment_numbers

    @property
    def segment_numbers(self) -> list[int]:
        """The segments; empty: all."""
        return _numbers("--segment", self.segments, "the number of a segment")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOptions(JobOptions):
    """What is done about ledgers that are being written."""

    skip_open: bool = option(False, "Leave ledgers alone that are being written.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RereplicateOptions(LeaveOptions):
    """Which bookies are lost."""

    bookies: tuple[str, ...] = option(
        (), "A bookie that is lost; may be repeated; needed.", word="--bookie", metavar="BOOKIE"
    )

    def check_together(self) -> None:
        """Refuse to look for nobody's replicas."""
        if not self.bookies:
            raise ConfigError("--bookie is missing: which bookies are lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecommissionOptions(LeaveOptions):
    """Which bookie goes."""

    bookie: str = required("The bookie that goes, running or not.", metavar="BOOKIE")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceOptions(JobOptions):
    """How even disks are to be."""

    within: float = option(
        0.05, "Largest difference between the shares of disks in use.",
        minimum=0.001, maximum=1, metavar="SHARE",
    )  # fmt: skip


# Data --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions(StreamJobOptions):
    """Which records are meant."""

    span: str = option(
        "", "Only these sequence ids of records, or ids of entries; either may be missing.",
        word="--range", metavar="FIRST-LAST",
    )  # fmt: skip
    since: str = option("", "Only records appended from then on.", metavar="TIME")
    until: str = option("", "Only those from before.", metavar="TIME")

    def check_together(self) -> None:
        """Refuse what is not a range, or not a time."""
        _ = self.first, self.since_ms, self.until_ms

    @property
    def first(self) -> int:
        """The first sequence id or entry id."""
        return _span(self.span)[0]

    @property
    def last(self) -> int | None:
        """The last one, which is included."""
        return _span(self.span)[1]

    @property
    def since_ms(self) -> int | None:
        """When the first was appended, in milliseconds since 1970."""
        return _ms("--since", self.since)

    @property
    def until_ms(self) -> int | None:
        """Before when the last was."""
        return _ms("--until", self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(SpanOptions):
    """How files are written, and which rows."""

    source: str = required(
        "stream:NAME,NAME, stream:* or ledger:ID,FIRST-LAST.", word="--from", metavar="WHAT"
    )
    out: str = required("Path or URI of a directory that all can reach.", metavar="DIR")
    format: str = option("parquet", "What files are written.", choices=("parquet", "jsonl", "csv"))
    encoding: str = option("text", "How bytes stand in JSON and CSV.", choices=("text", "base64"))

    def of_unit(self) -> dict[str, Any]:
        """Return what a task has to know."""
        names = ("out", "format", "encoding", "first", "last", "since_ms", "until_ms")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions(StreamJobOptions):
    """What goes where."""

    source: str = option(
        "", "Files, with wildcards; a URI; not with jdbc.", word="--src", metavar="PATH"
    )
    format: str = required(
        "What is read.", choices=("csv", "json", "parquet", "orc", "text", "jdbc")
    )
    reader_options: Mapping[str, str] = option(
        {}, "An option of Spark's reader, such as header=true; may be repeated.",
        word="--option", metavar="KEY=VALUE",
    )  # fmt: skip
    schema: str = option("", "Columns and types, as in SQL.", metavar="DDL")
    target: str = required("stream:NAME, or ledger.", word="--to", metavar="WHAT")
    value: str = option(
        "", "The column that is the payload; otherwise the row as JSON, of text the line.",
        metavar="COLUMN",
    )  # fmt: skip
    key: str = option("", "The column that is the record's key.", metavar="COLUMN")
    order_by: str = option("", "Write rows in this order.", metavar="COLUMNS")
    creates_stream: bool = option(
        False, "Make the stream if it is not there.", word="--create-stream"
    )
    txn: str = option(
        "", "Under this name it is written once, however often the command is given.",
        metavar="NAME",
    )  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        """Return what the job depends on, without secrets: it is kept in a file."""
        told = {
            name: HIDDEN if names_secret(f"{name}={value}") else _shown(value)
            for name, value in sorted(self.reader_options.items())
        }
        return {**JobOptions.arguments(self), "option": told}


def _shown(value: Any) -> Any:
    return shown(value) if isinstance(value, str) and "://" in value else value


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactKeysOptions(StreamJobOptions):
    """What is compacted."""

    source: str = required(
        "stream:NAME; it is read as far as its segments are completed.",
        word="--from", metavar="WHAT",
    )  # fmt: skip
    target: str = required("stream:NAME; another stream.", word="--to", metavar="WHAT")
    creates_stream: bool = option(
        False, "Make the stream if it is missing.", word="--create-stream"
    )
    retain_s: float = option(
        _DAY_S,
        "Keep records without a payload, which delete their key, so long in the result.",
        minimum=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSinkOptions(FollowOptions):
    """Which streams go into which table."""

    PASSING: ClassVar = ("catalog", "allows_loss", "batch_bytes", "follows", "every_s")

    source: str = required("stream:NAME,NAME or stream:*.", word="--from", metavar="WHAT")
    table: str = required("A directory or URI; of Iceberg NAMESPACE.TABLE.", metavar="WHERE")
    format: str = option(
        "parquet", "What kind of table it is.", choices=("parquet", "iceberg", "delta")
    )
    catalog: Mapping[str, str] = option(
        {}, "A property of the Iceberg catalog, such as uri or warehouse; may be repeated.",
        metavar="KEY=VALUE",
    )  # fmt: skip
    decode: str = option(
        "", "Fields of the records' JSON that become columns, such as 'carrier string, delay int'; "
        "schema: those of the stream's schema.",
        metavar="DDL",
    )  # fmt: skip
    bad_records: str = option(
        "keep",
        "Records that --decode cannot decode: rows with their bytes, an error, or no rows.",
        choices=("keep", "fail", "drop"),
    )
    dead_letters: str = option(
        "",
        "Append them to this stream instead, each once, with the reason; it is made if missing.",
        metavar="NAME",
    )
    upserts: bool = option(
        False, "The table has the latest record of each key; an empty record deletes its key.",
        word="--upsert",
    )  # fmt: skip
    allows_loss: bool = option(
        False, "Go on where records were truncated before they were copied.",
        word="--allow-data-loss",
    )  # fmt: skip

    def check_together(self) -> None:
        """Refuse properties of a catalog where there is none, and bad records of nothing."""
        if not self.decode and (self.dead_letters or self.bad_records != "keep"):
            raise ConfigError("--bad-records and --dead-letters need --decode")
        if self.dead_letters and self.bad_records != "keep":
            raise ConfigError("--dead-letters says what becomes of bad records: no --bad-records")
        if self.catalog and self.format != "iceberg":
            raise ConfigError(f"--catalog is for --format iceberg, not for {self.format}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossClusterOptions(FollowOptions):
    """Which streams go to which other cluster."""

    PASSING: ClassVar = ("to_config", "batch_bytes", "follows", "every_s")

    source: str = required("stream:NAME,NAME or stream:*.", word="--from", metavar="WHAT")
    to_metadata: str = required("The metadata of the other cluster.", metavar="URI")
    to_namespace: str = option(
        "", "Where its streams are; as --namespace if not given.", metavar="PATH"
    )
    to_config: str = option(
        "", "A quorumbook.toml for the other cluster; the one of --config if not given.",
        metavar="FILE",
    )  # fmt: skip
    verifies: bool = option(
        False, "Copy nothing: compare both sides, record by record.", word="--verify"
    )

    def check_together(self) -> None:
        """Refuse to compare for good."""
        if self.verifies and self.follows:
            raise ConfigError("--verify and --follow: one of them")


# Streaming queries -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions(SpanOptions):
    """What a query reads, how it runs, where its rows go."""

    PASSING: ClassVar = ("follows", "every_s")

    source: str = required("stream:NAME,NAME.", word="--from", metavar="WHAT")
    target: str = required(
        "stream:NAME; of analytics also a directory of Parquet files.", word="--to", metavar="WHAT"
    )
    creates_stream: bool = option(
        False, "Make the stream if it is missing.", word="--create-stream"
    )
    follows: bool = option(
        False, "Go on with what comes, until interrupted.", word="--follow"
    )  # fmt: skip
    every_s: float = option(10.0, "With --follow: begin a batch so often.", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformOptions(QueryOptions):
    """What is made of records."""

    sql: str = option("", "A query over the view records.", metavar="SQL")
    function_file: str = option(
        "", "A Python file with a function transform(frame).", word="--udf", metavar="FILE"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticsOptions(QueryOptions):
    """What is computed of records."""

    schema: str = required(
        "The fields of the records' JSON: 'carrier string, at timestamp'.", metavar="DDL"
    )
    time: str = required("The field that tells when it happened.", metavar="FIELD")
    window: str = required('Such as "10 minutes".', metavar="DURATION")
    slide: str = option("", "Begin a window so often.", metavar="DURATION")
    watermark: str = option("0 seconds", "How late events may be.", metavar="DURATION")
    group_by: tuple[str, ...] = option((), "May be repeated.", metavar="FIELD")
    measures: tuple[str, ...] = option(
        ("count(*) AS count",), "Such as avg(delay) AS delay; may be repeated.",
        word="--measure", metavar="SQL",
    )  # fmt: skip


def _numbers(flag: str, words: Sequence[str], what: str) -> list[int]:
    """Read numbers; words of nothing count as not there."""
    try:
        return [int(word) for word in words if word.strip()]
    except ValueError as error:
        raise ConfigError(f"{flag} {','.join(words)}: {what}") from error


def _span(text: str) -> tuple[int, int | None]:
    """Read FIRST-LAST, of which either may be missing."""
    first, dash, last = text.partition("-")
    if (text and not dash) or not (first or "0").isdigit() or not (last or "0").isdigit():
        raise ConfigError(f"--range {text}: FIRST-LAST, of which either may be missing")
    return int(first or 0), int(last) if last else None


def _ms(flag: str, text: str) -> int | None:
    """Return a time of this place in milliseconds since 1970; None: none was said."""
    if not text:
        return None
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as error:
        raise ConfigError(f"{flag} {text}: {_TIME_FORMS}") from error
