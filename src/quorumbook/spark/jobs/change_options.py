"""What ``quorumbook spark lake-changes`` can be told; pure.  See ``options``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from quorumbook.errors import ConfigError
from quorumbook.options import option, required
from quorumbook.spark.jobs.options import StreamJobOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeChangesOptions(StreamJobOptions):
    """Which table's changes go into which stream."""

    PASSING: ClassVar = ("catalog", "allows_loss", "creates_stream", "follows", "every_s")

    table: str = required("A directory or URI; of Iceberg NAMESPACE.TABLE.", metavar="WHERE")
    target: str = required("stream:NAME.", word="--to", metavar="WHAT")
    format: str = option(
        "parquet", "What kind of table it is; parquet: of lake-sink.",
        choices=("parquet", "iceberg", "delta"),
    )  # fmt: skip
    catalog: Mapping[str, str] = option(
        {}, "A property of the Iceberg catalog, such as uri or warehouse; may be repeated.",
        metavar="KEY=VALUE",
    )  # fmt: skip
    key: str = option("key", "The column that is a row's key.", metavar="COLUMN")
    value: str = option(
        "", "The column that is the payload; else all columns are, as JSON.", metavar="COLUMN"
    )
    creates_stream: bool = option(
        False, "Make the stream if it is missing.", word="--create-stream"
    )
    allows_loss: bool = option(
        False, "Go on where the version that was copied last is gone: all rows come again.",
        word="--allow-data-loss",
    )  # fmt: skip
    follows: bool = option(
        False, "Go on with what comes, until interrupted.", word="--follow"
    )  # fmt: skip
    every_s: float = option(10.0, "With --follow: look so often for what came.", minimum=0)

    def check_together(self) -> None:
        """Refuse properties of a catalog where there is none."""
        if self.catalog and self.format != "iceberg":
            raise ConfigError(f"--catalog is for --format iceberg, not for {self.format}")
