"""Records as tables by the schema of their stream: fields as columns, bad records, pruning."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'quorumbook[arrow]'")
pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from quorumbook.errors import ConfigError  # noqa: E402
from quorumbook.streams import (  # noqa: E402
    Compatibility,
    Decoder,
    Namespace,
    Position,
    RecordBatch,
    Schema,
    SchemaKind,
    Stream,
    StreamSchemas,
    version_headers,
)
from quorumbook.streams.errors import BadRecordError  # noqa: E402
from quorumbook.streams.frames.decoding import RecordDecoding  # noqa: E402
from quorumbook.streams.frames.records import Records  # noqa: E402
from quorumbook.sync.streams import Namespace as BlockingNamespace  # noqa: E402
from quorumbook.testing import LocalCluster  # noqa: E402

EVERYTHING = {
    "type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"]}, {"name": "key", "type": "string"},
        {"name": "price",
         "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "double"}},
        {"name": "kind", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "any", "type": ["null", "int", "string"]},
        {"name": "at_", "type": {"type": "record", "name": "P", "fields": [
            {"name": "x", "type": "float"}]}},
    ],
}  # fmt: skip


def avro(schema: Any) -> Schema:
    return Schema(SchemaKind.AVRO, json.dumps(schema))


def of_fields(*names: str) -> Schema:
    fields = [{"name": name, "type": "int", "default": 7} for name in names]
    return avro({"type": "record", "name": "R", "fields": fields})


def batch(payloads: list[bytes], slot: int = 0) -> RecordBatch:
    return RecordBatch(Position(1, 5, slot), 0, [0] * len(payloads), payloads, 1000, 3)


def decoder(*versions: Schema) -> Decoder:
    return Decoder(StreamSchemas("s", Compatibility.NONE, versions))


def value(n: int) -> dict[str, Any]:
    from decimal import Decimal

    return {
        "id": n, "count": -n, "note": None if n % 2 else "ä", "key": f"k{n}",
        "price": Decimal("1.25"), "at": datetime(2026, 11, 25, 8, tzinfo=UTC),
        "tags": ["x"] * n, "more": {"m": 0.5}, "kind": "B", "any": n, "at_": {"x": 1.5},
    }  # fmt: skip


def test_fields_are_columns_of_their_types() -> None:
    found = decoder(avro(EVERYTHING))
    made = RecordDecoding(found)
    assert made.schema.names == [
        "id", "count", "note", "key_", "price", "at", "tags", "more", "kind", "any", "at_",
    ]  # fmt: skip
    rows = made.batch_of(
        Records("s", -1, [batch([found.encode(value(n)) for n in range(3)])]), made.schema
    )
    for n, row in enumerate(rows.to_pylist()):
        expected = {**value(n), "more": [("m", 0.5)], "any": str(n)}
        expected["key_"] = expected.pop("key")
        assert row == expected
    assert rows.schema.field("price").type == pa.decimal128(6, 2)


def test_names_of_columns_differ_without_case() -> None:
    names = RecordDecoding(decoder(of_fields("Key", "key_", "KEY", "a", "A", "_error"))).schema
    assert names.names == ["Key_", "key__", "KEY___", "a", "A_", "_error_"]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_whatever_is_not_bad_fits_its_columns(payloads: list[bytes]) -> None:
    made = RecordDecoding(decoder(avro(EVERYTHING)), "null")
    schema = pa.schema([*made.schema, ("value", pa.binary()), ("_error", pa.string())])
    found = made.batch_of(Records("s", -1, [batch(payloads)]), schema)
    assert len(found) == len(payloads)
    for row, payload in zip(found.to_pylist(), payloads, strict=True):
        assert row["value"] in (None, payload)
        assert (row["value"] is None) == (row["_error"] is None) == (row["id"] is not None)


def test_which_records_are_bad_does_not_depend_on_the_columns() -> None:
    text = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    found = decoder(Schema(SchemaKind.JSON, json.dumps(text)))
    records = Records("s", -1, [batch([b'{"a": 1}', b'{"a": "x"}', b'{"b": 2}', b"{}"], slot=4)])
    for name in "a", "b":
        made = RecordDecoding(found, "drop")
        only = pa.schema([("slot", pa.int32()), made.schema.field(name)])
        assert made.batch_of(records, only).column("slot").to_pylist() == [4, 7]
        assert made.bad == 2
    dropped = RecordDecoding(found, "drop").batch_of(records, pa.schema([("slot", pa.int32())]))
    assert len(dropped) == 2
    with pytest.raises(
        BadRecordError, match=r"record 1:5:5 of stream s cannot be decoded: .*\$\.a"
    ):
        RecordDecoding(found).batch_of(records, RecordDecoding(found).schema)


def test_what_is_not_wanted_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("decoded")

    monkeypatch.setattr(Decoder, "row", never)
    for on_bad in "fail", "null":
        made = RecordDecoding(decoder(of_fields("a")), on_bad)  # type: ignore[arg-type]
        schema = pa.schema([("slot", pa.int32()), ("key", pa.binary())])
        assert len(made.batch_of(Records("s", -1, [batch([b"x"])]), schema)) == 1


@pytest.fixture
async def stream(ns: Namespace) -> Stream:
    """Two records of version 1, one of version 2, and one that is none."""
    await ns.create_stream("a/s")
    stream = ns.stream("a/s")
    async with stream.writer() as writer:
        for number, schema in enumerate((of_fields("a"), of_fields("a", "b")), 1):
            await stream.set_schema(schema)
            encoder = await stream.decoder()
            for n in range(3 - number):
                data = encoder.encode({"a": n, "b": n}) if number == 2 else encoder.encode({"a": n})
                await writer.append(data, headers=version_headers(number))
        await writer.append(b"\xff", headers=version_headers(2))
    return stream


async def test_a_table_has_the_fields_of_all_versions(stream: Stream) -> None:
    decode = await stream.decoder()
    with pytest.raises(BadRecordError, match="of stream a/s cannot be decoded"):
        await stream.to_arrow(decode=decode)
    found = await stream.to_arrow(["seq", "a", "b"], decode=decode, on_bad="drop")
    assert found.to_pylist() == [
        {"seq": 0, "a": 0, "b": 7}, {"seq": 1, "a": 1, "b": 7}, {"seq": 2, "a": 0, "b": 0},
    ]  # fmt: skip
    whole = await stream.to_arrow(decode=decode, on_bad="null")
    assert whole.column_names[-4:] == ["value", "a", "b", "_error"]
    (bad,) = [row for row in whole.to_pylist() if row["_error"]]
    assert (bad["seq"], bad["value"], bad["a"]) == (3, b"\xff", None)
    old = await stream.to_arrow(["a"], decode=await stream.decoder(1), on_bad="drop")
    assert old.column_names == ["a"]
    with pytest.raises(ConfigError, match="no column 'c'"):
        await stream.to_arrow(["c"], decode=decode)
    frame = await stream.to_pandas(["a", "b"], decode=decode, on_bad="drop")
    assert frame["b"].tolist() == [7, 7, 0]


def test_polars_reads_the_fields_that_a_query_uses(standing_cluster: LocalCluster) -> None:
    pl = pytest.importorskip("polars")
    address = f"{standing_cluster.metadata_uri}#/decoded-frames"
    with BlockingNamespace.open(address, bind=True) as namespace:
        namespace.create_stream("s")
        stream = namespace.stream("s")
        stream.set_schema(of_fields("a", "b"))
        decode = stream.decoder()
        with stream.writer() as writer:
            for n in range(10):
                writer.append(decode.encode({"a": n, "b": 10 * n}))
        found = stream.scan(decode=decode).filter(pl.col("a") > 7).select("b").collect()
        assert found["b"].to_list() == [80, 90]
        assert stream.to_polars(["b"], decode=decode)["b"].sum() == 450
        assert stream.arrow_reader(["a"], decode=decode).read_all().num_rows == 10
