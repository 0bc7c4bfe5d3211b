"""Topics read from bookies without a broker: ledgers, chunks, what is gone, tables."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quorumbook
from doubles import pulsar_topics as laid
from doubles.clusters import local_cluster_here
from doubles.pulsar_topics import TopicOnDisk
from quorumbook.client.client import BookKeeper
from quorumbook.errors import ConfigError
from quorumbook.pulsar import Topic, TopicSchema, chunks, list_topics, reading
from quorumbook.pulsar.formats import make
from quorumbook.pulsar.schemas import decode_places
from quorumbook.streams.errors import (
    CorruptRecordsError,
    DataLossError,
    SchemaNotFoundError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.testing import LocalCluster

cluster = local_cluster_here()
NAME = "eu/shop/orders"


@pytest.fixture
async def bk(cluster: LocalCluster) -> AsyncIterator[BookKeeper]:
    async with quorumbook.connect(cluster.metadata_uri) as client:
        yield client


async def values(topic: Topic, **how: object) -> list[bytes | None]:
    return [message.value async for message in topic.read(**how)]  # type: ignore[arg-type]


async def test_a_topic_is_read_over_its_ledgers_while_it_is_written(bk: BookKeeper) -> None:
    written = TopicOnDisk(bk, NAME)
    await written.add(laid.entry(b"0"), laid.batch(laid.single(b"1"), laid.single(b"2")))
    second = await written.roll()
    await written.add(laid.entry(b"", marker_type=21), laid.entry(b"3"), laid.entry(b"4"))
    topic = Topic(bk, f"persistent://{NAME}")
    # The last one is confirmed by the entry after it, or when its writer has rested.
    assert (await values(topic))[:4] == [b"0", b"1", b"2", b"3"]
    assert (await values(topic, start=(second, 0)))[:1] == [b"3"]
    await written.add(laid.entry(b"5"))  # whoever reads shuts nobody out
    assert (await values(topic, start=(second, 2)))[:1] == [b"4"]
    await written.close()
    assert await values(topic, start=(second, 2)) == [b"4", b"5"]
    assert [ledger.entries for ledger in await topic.ledgers()] == [2, None]


async def test_topics_are_listed_and_a_name_stands_for_its_partitions(bk: BookKeeper) -> None:
    for name in (f"{NAME}-partition-10", f"{NAME}-partition-2", "eu/shop/a b", "eu/other/x"):
        written = TopicOnDisk(bk, name)
        await written.add(laid.entry(name.encode()))
        await written.close()
        await written.save()
    partitions = [f"{NAME}-partition-2", f"{NAME}-partition-10"]
    assert await list_topics(bk, "eu/shop") == ["eu/shop/a b", *partitions]
    assert await list_topics(bk, "eu/none") == []
    topic = Topic(bk, NAME)
    assert await topic.partitions() == partitions
    assert await values(topic) == [name.encode() for name in partitions]
    assert await values(Topic(bk, partitions[1])) == [partitions[1].encode()]
    assert await values(Topic(bk, "eu/shop/a b")) == [b"eu/shop/a b"]
    with pytest.raises(ConfigError, match="2 partitions"):
        await values(topic, start=(0, 0))
    with pytest.raises(StreamNotFoundError, match="list_topics"):
        await values(Topic(bk, "eu/shop/none"))
    with pytest.raises(ConfigError, match="TENANT/NAMESPACE"):
        await list_topics(bk, "eu")


async def test_a_message_in_chunks_is_where_its_last_one_is(
    bk: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = TopicOnDisk(bk, NAME)
    large, other = bytes(range(256)) * 40, b"other" * 100
    a, b = laid.chunks(large, 3, b"a-1", "zlib"), laid.chunks(other, 2, b"b-1")
    await written.add(a[0], laid.entry(b"0"), b[0])
    second = await written.roll()
    # The producer has sent one of them twice, and one message is never finished.
    await written.add(a[1], a[1], laid.entry(b"1"), laid.chunks(b"never", 2, b"c-1")[0], a[2])
    await written.add(b[1])
    await written.close()
    topic = Topic(bk, NAME)
    whole = [b"0", b"1", large, other]
    assert await values(topic) == whole
    positions = [(m.ledger_id, m.entry_id) async for m in topic.read()]
    assert positions[2:] == [(second, 4), (second, 5)]
    # Where a reader begins between them, it looks for the others in the ledger before as well.
    for first in range(5):
        assert (await values(topic, start=(second, first)))[-2:] == [large, other]
    monkeypatch.setattr(reading, "_BLOCK_ENTRIES", 1)
    monkeypatch.setattr(chunks, "_MAX_HELD_BYTES", 0)  # nothing is remembered
    assert await values(topic) == whole


async def test_a_producer_that_begins_again_may_send_fewer_chunks(bk: BookKeeper) -> None:
    written = TopicOnDisk(bk, NAME)
    before, after = laid.chunks(b"long before", 4, b"p-7"), laid.chunks(b"after", 2, b"p-7")
    await written.add(*before[:3], *after)
    await written.close()
    assert await values(Topic(bk, NAME)) == [b"after"]


async def test_a_message_is_left_out_whose_first_chunks_are_gone(
    bk: BookKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    written = TopicOnDisk(bk, NAME)
    first, last = laid.chunks(b"cut in two", 2, b"a-1")
    await written.add(first)
    await written.roll()
    await written.add(last, laid.entry(b"0"))
    await written.close()
    await written.trim()
    assert await values(Topic(bk, NAME)) == [b"0"]
    assert "1 of its 2 chunks are not in" in caplog.text


async def test_chunks_that_contradict_themselves_are_errors(bk: BookKeeper) -> None:
    for number, (fields, reason) in enumerate(
        (
            ({"chunk_id": 2}, "is chunk 2 of 2"),
            ({"chunk_id": -1}, "is chunk -1 of 2"),
            ({"total_chunk_msg_size": 99}, "should have 99"),
        )
    ):
        written = TopicOnDisk(bk, f"{NAME}{number}")
        how = {"uuid": b"u", "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
        await written.add(laid.entry(b"a", chunk_id=0, **how))
        await written.add(laid.entry(b"b", **{"chunk_id": 1, **how, **fields}))
        await written.close()
        with pytest.raises(CorruptRecordsError, match=reason):
            await values(Topic(bk, f"{NAME}{number}"))


async def test_what_cannot_be_read_is_an_error_or_a_row_or_nothing(bk: BookKeeper) -> None:
    written = TopicOnDisk(bk, NAME)
    secret = laid.entry(b"secret", encryption_keys=[b"k"], partition_key=b"key")
    await written.add(b"junk", secret, laid.entry(b"good"))
    await written.close()
    with pytest.raises(CorruptRecordsError, match="cannot be read as a message of Pulsar"):
        await values(Topic(bk, NAME))
    assert await values(Topic(bk, NAME, on_corrupt="skip")) == [b"good"]
    junk, hidden, good = [m async for m in Topic(bk, NAME, on_corrupt="null").read()]
    assert (junk.entry_id, junk.value, junk.key) == (0, None, None)
    assert "entry 0" in (junk.error or "")
    assert (hidden.key, hidden.value) == (b"key", None)
    assert "encrypted" in (hidden.error or "")
    assert (good.value, good.error) == (b"good", None)
    ledger = (await Topic(bk, NAME).ledgers())[0].ledger_id
    with pytest.raises(UnsupportedFormatError, match="encrypted"):
        await values(Topic(bk, NAME), start=(ledger, 1))


async def test_a_ledger_that_is_gone_is_data_loss(bk: BookKeeper) -> None:
    written = TopicOnDisk(bk, NAME)
    await written.add(laid.entry(b"0"))
    await written.roll()
    await written.add(laid.entry(b"1"))
    await written.close()
    await bk.delete_ledger(written.infos[0]["ledgerId"])
    with pytest.raises(DataLossError, match=f"of topic {NAME} is gone$"):
        await values(Topic(bk, NAME))
    moved = laid.make("OffloadContext", complete=True, bookkeeperDeleted=True)
    written.infos[0]["offloadContext"] = moved
    await written.save()
    with pytest.raises(DataLossError, match="moved it to other storage"):
        await values(Topic(bk, NAME))


async def test_a_topic_is_a_table(bk: BookKeeper) -> None:
    written = TopicOnDisk(bk, f"{NAME}-partition-1")
    said = laid.properties(colour="red")
    await written.add(
        laid.entry(b"0", partition_key=b"k", properties=said, schema_version=bytes(7) + b"\3"),
        laid.batch(laid.single(b"1", event_time=5), laid.single(b"2")),
    )
    await written.close()
    topic = Topic(bk, NAME)
    table = await topic.to_arrow()
    assert table.column("topic").to_pylist() == [NAME] * 3
    assert table.column("partition").to_pylist() == [1] * 3
    assert table.column("properties").to_pylist() == [[("colour", "red")], [], []]
    assert table.column("schema_version").to_pylist() == [3, None, None]
    assert table.column("batch_index").to_pylist() == [None, 0, 1]
    few = await topic.to_arrow(["value", "event_time"])
    assert few.column_names == ["value", "event_time"]
    assert few.column("event_time").cast("int64").to_pylist() == [None, 5000, None]
    assert (await topic.to_pandas(["value"]))["value"].tolist() == [b"0", b"1", b"2"]
    with pytest.raises(ConfigError, match="no column 'valu'"):
        await topic.to_arrow(["valu"])


async def test_an_empty_topic_has_no_rows(bk: BookKeeper) -> None:
    await laid.put(bk, TopicOnDisk(bk, NAME).name.node, b"")
    assert await values(Topic(bk, NAME)) == []
    assert (await Topic(bk, NAME).to_arrow()).num_rows == 0


async def test_the_example_of_the_documentation_runs(
    cluster: LocalCluster, bk: BookKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "pulsar.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    written = TopicOnDisk(bk, "public/default/orders")
    await written.add(laid.entry(b"first", partition_key=b"k"))
    await written.close()
    example = example.replace("zk://zk1:2181/ledgers", cluster.metadata_uri)
    await asyncio.to_thread(exec, example, {})
    shown = capsys.readouterr().out
    assert "['public/default/orders']" in shown
    assert "1700000000000 b'k' b'first'" in shown


async def test_a_topic_has_a_schema_in_versions(bk: BookKeeper) -> None:
    topic = Topic(bk, f"{NAME}-partition-3")
    with pytest.raises(SchemaNotFoundError, match="has no schema"):
        await topic.schema()
    index = []
    for version, (kind, deleted) in enumerate([(5, False), (3, False), (99, False)]):
        info = make(
            "SchemaInfo", type=kind, schema=b"definition %d" % version, deleted=deleted,
            props=laid.properties(a=str(version)),
        ).SerializeToString()  # fmt: skip
        async with bk.create_ledger() as ledger:
            await ledger.append(make("SchemaEntry", schema_data=info).SerializeToString())
            place = make("PositionInfo", ledgerId=ledger.id, entryId=0)
        index.append(make("IndexEntry", version=version, position=place))
    data = make("SchemaLocator", info=index[-1], index=index).SerializeToString()
    await laid.put(bk, "/schemas/eu/shop/orders", data)
    assert await topic.schema(0) == TopicSchema(0, "AVRO", b"definition 0", {"a": "0"})
    assert (await topic.schema(1)).kind == "JSON"
    assert (await topic.schema())[:3] == (2, "?99", b"definition 2")
    with pytest.raises(SchemaNotFoundError, match="no version 3"):
        await topic.schema(3)
    await laid.put(bk, "/schemas/eu/shop/orders", b"junk")
    with pytest.raises(CorruptRecordsError, match="SchemaLocator"):
        await topic.schema()


def test_what_a_broker_stored_names_the_versions_of_a_schema() -> None:
    golden = json.loads((Path(__file__).parents[2] / "golden" / "pulsar.json").read_text())
    for name, ledger in (("json", 11), ("avro", 13)):
        assert decode_places(base64.b64decode(golden["schemas"][name])) == {0: (ledger, 0)}
