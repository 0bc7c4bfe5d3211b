"""Ledgers and streams as tables, read at once."""

from __future__ import annotations

import pytest


def _ledger(cluster, payloads, *, close=True, **options):
    with cluster.connect() as client:
        writer = client.create_ledger(**options)
        for payload in payloads:
            writer.append(payload)
        if close:
            writer.close()
        return writer.id


def test_a_ledger_is_a_table(load, cluster):
    payloads = [b"", b"one", b"\x00" * 100, b"four"]
    ledger_id = _ledger(cluster, payloads)
    rows = load(f"ledger:{ledger_id}").collect()
    assert [(row.ledger_id, row.entry_id, row.size, bytes(row.value)) for row in rows] == [
        (ledger_id, n, len(payload), payload) for n, payload in enumerate(payloads)
    ]


@pytest.mark.parametrize("option", ["client.auth_plugin", "placement.rack_class"])
def test_sql_runs_no_code_through_an_option(spark, cluster, tmp_path, option):
    ledger_id = _ledger(cluster, [b"one"])
    proof = tmp_path / "proof"
    settings = "client.auth_settings" if option == "client.auth_plugin" else f"{option}_settings"
    with pytest.raises(Exception, match="names code to be run") as caught:
        spark.sql(
            "CREATE OR REPLACE TEMPORARY VIEW hostile USING quorumbook OPTIONS ("
            f"'metadataServiceUri' '{cluster.metadata_uri}', 'path' 'ledger:{ledger_id}', "
            f"'{option}' 'os:system', '{settings}' 'touch {proof}')"
        )
        spark.sql("SELECT * FROM hostile").collect()
    assert option in str(caught.value)
    assert not proof.exists()


def test_a_stream_is_a_table(load, streams):
    streams.write("table", [b"record %d" % n for n in range(100)])
    frame = load("stream:table")
    rows = frame.collect()
    assert [row.seq for row in rows] == list(range(100))
    assert [bytes(row.value) for row in rows] == [b"record %d" % n for n in range(100)]
    assert load("stream:table", schema="seq bigint").agg({"seq": "sum"}).collect()[0][0] == 4950


def test_entries_of_five_megabytes_pass_a_small_driver(load, cluster):
    """More than a third of the driver's memory, of which it never sees a payload."""
    count, size = 70, 5_200_000
    options = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    with cluster.connect() as client, client.create_ledger(**options) as writer:
        for number in range(count):
            writer.append(bytes([number]) * size)
        ledger_id = writer.id
    frame = load(f"ledger:{ledger_id}").selectExpr(
        "entry_id", "length(value) AS size", "hex(substr(value, -1)) AS last"
    )
    assert [(row.entry_id, row.size, int(row.last, 16)) for row in frame.collect()] == [
        (number, size, number) for number in range(count)
    ]


def test_an_empty_selection_is_an_empty_table(load, streams):
    streams.run(streams.namespace.create_stream("nothing"))
    assert load("stream:nothing").count() == 0


def test_one_frame_used_twice_is_read_as_it_is(spark, load, cluster):
    """Push-down of filters is unsound in PySpark 4.3, so the source must not take part in it."""
    ledger_id = _ledger(cluster, [b"%d" % n for n in range(10)])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(f"ledger:{ledger_id}")
        assert frame.filter("entry_id = 1").count() == 1
        assert frame.count() == 10
        both = frame.filter("entry_id = 1").union(frame.filter("entry_id = 9"))
        assert sorted(row.entry_id for row in both.collect()) == [1, 9]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_spark_gives_the_conditions_of_one_query_to_another(spark):
    """Why the source takes none over; should this fail, Spark has mended it, and docs/spark.md."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo

    class Reader(DataSourceReader):
        def __init__(self):
            self.wanted = range(10)

        def pushFilters(self, filters):
            for each in filters:
                if isinstance(each, EqualTo):
                    self.wanted = [each.value]
                yield each  # Spark is to look at rows itself, and does

        def read(self, partition):
            del partition
            return iter([(number,) for number in self.wanted])

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "pushed"

        def schema(self):
            return "id long"

        def reader(self, schema):
            del schema
            return Reader()

    spark.dataSource.register(Source)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("pushed").load()
        assert frame.filter("id = 1").count() == 1
        assert frame.count() == 1  # of 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        spark.read.format("pushed").load().count()


def test_a_wrong_option_is_one_clear_error_before_any_task(load):
    with pytest.raises(Exception, match="there is no option maxrows; the nearest are maxBatchRows"):
        load("ledger:1", maxRows="3")
    with pytest.raises(Exception, match="there is no stream nowhere"):
        load("stream:nowhere").count()


def test_the_format_is_found_without_being_registered(spark):
    """Spark imports ``pyspark_quorumbook`` by itself, so nothing else has to be done."""
    import subprocess
    import sys

    code = (
        "import sys, pyspark_quorumbook;"
        "assert pyspark_quorumbook.DefaultSource.name() == 'quorumbook';"
        "assert not [m for m in sys.modules if m.startswith('quorumbook')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
