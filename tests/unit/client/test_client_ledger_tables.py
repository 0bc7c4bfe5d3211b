"""Ledgers as tables: Arrow, pandas, Polars and DuckDB, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from doubles.clusters import local_cluster

pa = pytest.importorskip("pyarrow", reason="pip install 'quorumbook[arrow]'")

import quorumbook  # noqa: E402
from quorumbook.client.reading import arrow  # noqa: E402
from quorumbook.client.reading.lazy_frames import ValueBounds, bounds_of  # noqa: E402
from quorumbook.errors import ConfigError, LocalProtocolError  # noqa: E402
from quorumbook.sync import LedgerReader  # noqa: E402
from quorumbook.testing import LocalCluster  # noqa: E402

PAYLOADS = [b"%d" % n * (n % 5) for n in range(1000)]


cluster = local_cluster(scope="module")


@pytest.fixture(scope="module")
def ledger_id(cluster: LocalCluster) -> int:
    with cluster.connect() as client, client.create_ledger() as writer:
        for payload in PAYLOADS:
            writer.append_nowait(payload)
        return writer.id


@pytest.fixture
def ledger(cluster: LocalCluster, ledger_id: int) -> Iterator[LedgerReader]:
    with cluster.connect() as client, client.open_ledger(ledger_id) as reader:
        yield reader


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what is asked of the blocking reader: columns, first and last entry."""
    calls: list[Any] = []
    make = LedgerReader.arrow_batches

    def watched(self: Any, columns: Sequence[str] | None = None, **range_: int) -> Any:
        calls.append((columns, range_["first"], range_["last"]))
        return make(self, columns, **range_)

    monkeypatch.setattr(LedgerReader, "arrow_batches", watched)
    return calls


@pytest.mark.parametrize("rows", [1, 7, 65_536])
async def test_a_table_has_all_entries(
    cluster: LocalCluster, ledger_id: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "MAX_ROWS", rows)
    async with quorumbook.connect(cluster.metadata_uri) as bk, bk.open_ledger(ledger_id) as ledger:
        table = await ledger.to_arrow()
        assert table.schema == arrow.SCHEMA
        assert table.to_pylist() == [
            {"ledger_id": ledger_id, "entry_id": n, "size": len(payload), "value": payload}
            for n, payload in enumerate(PAYLOADS)
        ]
        part = await ledger.to_arrow(["value", "entry_id"], first=990, last=994)
        assert part.column_names == ["value", "entry_id"]
        assert part["value"].to_pylist() == PAYLOADS[990:995]
        batches = [batch async for batch in ledger.arrow_batches(["size"], first=500)]
        assert sum(batch.num_rows for batch in batches) == 500
        assert (await ledger.to_pandas(["entry_id"]))["entry_id"].sum() == sum(range(1000))
        assert (await ledger.to_polars(["entry_id"]))["entry_id"].sum() == sum(range(1000))


async def test_what_is_asked_wrongly_is_refused(cluster: LocalCluster, ledger_id: int) -> None:
    async with quorumbook.connect(cluster.metadata_uri) as bk, bk.open_ledger(ledger_id) as ledger:
        with pytest.raises(ConfigError, match="entries have no column 'entry'; the nearest: entr"):
            await ledger.to_arrow(["entry"])
        with pytest.raises(ConfigError, match="a column stands twice"):
            await ledger.to_arrow(["size", "size"])
        with pytest.raises(LocalProtocolError):
            await ledger.to_arrow(last=1000)


def test_an_empty_ledger_is_an_empty_table(cluster: LocalCluster) -> None:
    with cluster.connect() as client:
        with client.create_ledger() as writer:
            pass
        with client.open_ledger(writer.id) as ledger:
            assert ledger.to_arrow().num_rows == 0
            assert ledger.scan().collect().height == 0


def test_a_ledger_that_is_written_is_a_table_of_what_is_confirmed(cluster: LocalCluster) -> None:
    with cluster.connect() as client, client.create_ledger() as writer:
        writer.append(b"one")
        writer.flush()
        with client.open_ledger(writer.id, recover=False) as ledger:
            assert ledger.to_arrow(["value"])["value"].to_pylist() == [b"one"]
        writer.append(b"two")  # nobody was shut out


def test_duckdb_asks_a_ledger(ledger: LedgerReader) -> None:
    duckdb = pytest.importorskip("duckdb")
    entries = duckdb.from_arrow(ledger.arrow_reader(["entry_id", "size"], first=100))
    found = entries.query("e", "SELECT count(*), min(entry_id), max(size) FROM e").fetchall()
    assert found == [(900, 100, 12)]


def test_a_lazy_frame_reads_the_range_and_the_columns_that_its_query_leaves(
    ledger: LedgerReader, asked: list[Any]
) -> None:
    pl = pytest.importorskip("polars")
    lazy = ledger.scan()
    assert lazy.collect_schema().names() == arrow.SCHEMA.names
    late = lazy.filter(pl.col("entry_id") >= 990, pl.col("size") > 0).select("value").collect()
    assert late["value"].to_list() == [each for each in PAYLOADS[990:] if each]
    columns, first, last = asked.pop()
    assert (set(columns), first, last) == ({"entry_id", "size", "value"}, 990, 999)
    assert lazy.filter(pl.col("entry_id").eq(7)).select(pl.len()).collect().item() == 1
    assert asked.pop()[1:] == (7, 7)
    assert lazy.filter((pl.col("entry_id") < 3) | (pl.col("size") == 0)).collect().height == 202
    assert asked.pop()[1:] == (0, 999)
    assert lazy.filter(pl.col("entry_id") > 5000).collect().height == 0
    assert asked == []
    assert lazy.head(3).select("entry_id").collect()["entry_id"].to_list() == [0, 1, 2]
    assert lazy.select(pl.len()).collect().item() == 1000


def test_bounds_are_what_every_wanted_row_has() -> None:
    pl = pytest.importorskip("polars")
    n, other = pl.col("n"), pl.col("other")
    for predicate, expected in [
        (n >= 5, ValueBounds(5)),
        (n > 5, ValueBounds(6)),
        (n < 5, ValueBounds(high=4)),
        (n <= 5, ValueBounds(high=5)),
        (n == 5, ValueBounds(5, 5)),
        (pl.lit(5) < n, ValueBounds(6)),
        (pl.lit(5) >= n, ValueBounds(high=5)),
        ((n > 1) & (n > 3) & (other > 9) & (n < 8), ValueBounds(4, 7)),
        ((n > 1) | (n > 3), ValueBounds()),
        (~(n > 1), ValueBounds()),
        (n != 5, ValueBounds()),
        (n > 1.5, ValueBounds()),
        (n + 1 > 5, ValueBounds()),
        (n > other, ValueBounds()),
        (other > 5, ValueBounds()),
        (n.is_in([1, 2]), ValueBounds()),
    ]:
        assert bounds_of(predicate, "n") == expected, str(predicate)
    assert bounds_of(object(), "n") == ValueBounds()
