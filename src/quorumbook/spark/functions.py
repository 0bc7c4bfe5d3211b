"""Table functions for SQL: ``bk_entries(ledger, first, last)`` and ``bk_ledger(ledger)``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf

from quorumbook.spark.meta.ledgers import ledger_rows
from quorumbook.spark.pool import connected
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.ledger_rows import DamagedRow, gather
from quorumbook.spark.rows.open_ledgers import OpenLedgers

_ENTRIES = "ledger_id bigint, entry_id bigint, size int, value binary"
_LEDGER = "ledger_id bigint, state string, last_entry bigint, length bigint, fragments int"


def register_functions(spark: SparkSession, given: Mapping[str, str]) -> list[str]:
    """Have a session know the functions, for one cluster; return their names."""
    options = ReadOptions.of({**given, "path": "ledger:*"})

    class Entries:
        """Entries of one ledger; ``first`` and ``last`` may be left out."""

        def eval(
            self, ledger_id: int, first: int | None = None, last: int | None = None
        ) -> Iterator[tuple[Any, ...]]:
            """Yield the entries."""
            return entries_of(options, ledger_id, first, last)

    class Ledger:
        """What the metadata say of one ledger."""

        def eval(self, ledger_id: int) -> Iterator[tuple[Any, ...]]:
            """Yield one row."""
            cluster = connected(options.connection)
            metadata = cluster.run(lambda: cluster.client.ledger_metadata(ledger_id))
            (row,) = ledger_rows(metadata)
            yield tuple(
                row[name] for name in ("ledger_id", "state", "last_entry", "length", "fragments")
            )

    spark.udtf.register("bk_entries", udtf(Entries, returnType=_ENTRIES))
    spark.udtf.register("bk_ledger", udtf(Ledger, returnType=_LEDGER))
    return ["bk_entries", "bk_ledger"]


def entries_of(
    options: ReadOptions, ledger_id: int, first: int | None, last: int | None
) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield id, entry, size and payload of entries that are confirmed."""
    cluster = connected(options.connection)
    ledgers = OpenLedgers(cluster, options.connection)
    end, _ = cluster.run(lambda: ledgers.end_entry(ledger_id))
    cluster.run(lambda: ledgers.forget(ledger_id))
    begin = first or 0
    behind = end if last is None else min(end, last + 1)
    if begin >= behind:
        return
    piece = Piece("", ledger_id, begin, behind - 1, 0, behind - begin)
    for found in cluster.iterate_ahead(lambda: gather(cluster, options, [piece])):
        assert not isinstance(found, DamagedRow)  # what cannot be read is an error here
        for batch, *_ in found:
            for entry in batch:
                yield ledger_id, entry.entry_id, len(entry.payload), entry.payload
