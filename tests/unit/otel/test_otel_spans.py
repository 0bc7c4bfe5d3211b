"""What spans say of ledgers and streams, whom they link, and that they go without a trace."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import quorumbook
import quorumbook.sync
import quorumbook.sync.streams
from doubles.clusters import local_cluster
from quorumbook.errors import LedgerFencedError
from quorumbook.otel import QuorumbookInstrumentor, context_of, processing
from quorumbook.otel.spans import CLIENT_CALLS
from quorumbook.streams import Attributes, Namespace, PartitionedStream
from quorumbook.testing import LocalCluster

cluster = local_cluster(["memory"], scope="module")


class Spans:
    """What was exported, by name."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def __getitem__(self, name: str) -> list:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def starting_with(self, text: str) -> list:
        return [s for s in self._exporter.get_finished_spans() if s.name.startswith(text)]

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]


@pytest.fixture(params=[True])
def spans(request: pytest.FixtureRequest) -> Iterator[Spans]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    QuorumbookInstrumentor().instrument(tracer_provider=provider, propagate=request.param)
    yield Spans(exporter)
    QuorumbookInstrumentor().uninstrument()


async def test_the_life_of_a_ledger(cluster: LocalCluster, spans: Spans) -> None:
    async with quorumbook.connect(cluster.metadata_uri) as bk:
        writer = await bk.create_ledger(password=b"canary-6341")
        assert await writer.append(b"canary-payload") == 0
        await writer.append_batch([b"one", b"two"])
        async with bk.open_ledger(writer.id, password=b"canary-6341") as reader:
            assert [entry.payload async for entry in reader.read()][1:] == [b"one", b"two"]
            await reader.read_entry(1)
            await reader.read_batch(0)
        with pytest.raises(LedgerFencedError):
            await writer.append(b"too late")
        await writer.abort()
    (made,) = spans["create_ledger"]
    assert made.attributes["quorumbook.write_quorum_size"] == 3
    first, late = spans["append"]
    assert first.attributes == {
        "quorumbook.ledger.id": writer.id,
        "messaging.message.body.size": 14,
    }
    assert late.status.status_code is StatusCode.ERROR
    assert "LedgerFencedError" in late.status.description
    assert late.events[0].name == "exception"
    assert spans["append_batch"]
    (opened,) = spans["open_ledger"]
    (recovered,) = spans["recover_ledger"]
    assert recovered.parent.span_id == opened.context.span_id
    assert recovered.attributes["quorumbook.ledger.id"] == writer.id
    assert [span.attributes.get("quorumbook.entries") for span in spans["read"]] == [3, None, None]
    assert "canary" not in "".join(
        # All that was sent so far.
        map(repr, (s.to_json() for s in spans._exporter._finished_spans))
    )


async def test_an_append_is_over_when_its_future_is(cluster: LocalCluster, spans: Spans) -> None:
    async with quorumbook.connect(cluster.metadata_uri) as bk, bk.create_ledger() as writer:
        future = writer.append_nowait(b"x")
        assert not spans["append"]
        await future
        assert len(spans["append"]) == 1


async def test_records_carry_the_context_of_their_appender(
    cluster: LocalCluster, spans: Spans
) -> None:
    async with Namespace.open(f"{cluster.metadata_uri}#/carried", bind=True) as ns:
        await ns.create_stream("orders")
        stream = ns.stream("orders")
        async with stream.writer() as writer:
            await writer.append(b"one", key=b"k", headers={"mine": b"1"})
            await writer.append_batch([b"two", b"three"], attributes=[Attributes(key=b"z"), None])
            await writer.flush()
        async with stream.reader() as reader:
            records = await reader.read(3)
            assert [r.payload for r in records] == [b"one", b"two", b"three"]
            assert await reader.read(3, wait_s=0.01) == []
    one, batch = spans["send orders"]
    assert one.kind is SpanKind.PRODUCER
    assert one.attributes["messaging.destination.name"] == "orders"
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert records[0].key == b"k"
    assert records[0].headers["mine"] == b"1"
    assert [r.key for r in records] == [b"k", b"z", None]
    (received,) = spans["receive orders"]
    assert received.kind is SpanKind.CONSUMER
    assert received.attributes["messaging.batch.message_count"] == 3
    linked = [link.context.span_id for link in received.links]
    assert linked == [one.context.span_id, batch.context.span_id]
    found = trace.get_current_span(context_of(records[0])).get_span_context()
    assert (found.trace_id, found.span_id) == (one.context.trace_id, one.context.span_id)


@pytest.mark.parametrize("spans", [False], indirect=True)
async def test_records_may_go_as_they_are(cluster: LocalCluster, spans: Spans) -> None:
    async with Namespace.open(f"{cluster.metadata_uri}#/plain", bind=True) as ns:
        await ns.create_stream("s")
        stream = ns.stream("s")
        async with stream.writer() as writer:
            await writer.append(b"one")
            await writer.append_batch([b"two"])
            writer.put(b"three")
            await writer.flush()
        async with stream.reader() as reader:
            assert [r.headers for r in await reader.read(3)] == [{}, {}, {}]
    assert len(spans["send s"]) == 2


async def test_a_group_says_who_received(cluster: LocalCluster, spans: Spans) -> None:
    async with Namespace.open(f"{cluster.metadata_uri}#/groups", bind=True) as ns:
        orders = await PartitionedStream.create(ns, "orders", partitions=2)
        async with orders.writer() as writer:
            await writer.append(b"x", key=b"k")
            await writer.flush()
        async with orders.consumer(group="billing") as consumer:
            (delivery,) = await consumer.read(1, wait_s=None)
            with processing(delivery, "orders") as span:
                assert not span.is_recording()  # it goes to the global provider, which is none
            await consumer.ack(delivery)
        async with orders.reader() as reader:
            assert len(await reader.read(1, wait_s=None)) == 1
    by_group, by_nobody = spans.starting_with("receive ")
    assert by_group.attributes["messaging.consumer.group.name"] == "billing"
    assert "messaging.consumer.group.name" not in by_nobody.attributes
    (sent,) = spans.starting_with("send ")
    assert by_group.links[0].context.span_id == sent.context.span_id


def test_the_blocking_twin_has_the_same_spans_once(cluster: LocalCluster, spans: Spans) -> None:
    provider = TracerProvider()
    tracer = provider.get_tracer("test")
    with quorumbook.sync.connect(cluster.metadata_uri) as bk, bk.create_ledger() as writer:
        with tracer.start_as_current_span("outer") as outer:
            writer.append(b"x")
            writer.append_batch([b"y"])
    assert spans["append"][0].parent.span_id == outer.get_span_context().span_id
    assert spans.names.count("append") == 1
    assert spans.names.count("append_batch") == 1
    uri = f"{cluster.metadata_uri}#/twin"
    with quorumbook.sync.streams.Namespace.open(uri, bind=True) as ns:
        ns.create_stream("s")
        stream = ns.stream("s")
        with stream.writer() as writer:
            with tracer.start_as_current_span("outer") as outer:
                writer.append(b"1")
                writer.append_nowait(b"2").result()
                writer.append_batch([b"3"])
                writer.put(b"4")
            writer.flush()
        with stream.reader() as reader:
            records = reader.read(4)
    sent = spans["send s"]
    assert [span.parent.span_id for span in sent] == [outer.get_span_context().span_id] * 3
    carried = [trace.get_current_span(context_of(each)).get_span_context() for each in records]
    own = [span.context.span_id for span in sent]
    assert [each.span_id for each in carried] == [*own, outer.get_span_context().span_id]


def test_nothing_is_left_when_it_is_taken_out(spans: Spans) -> None:
    def methods() -> list:
        found = []
        for call in CLIENT_CALLS:
            module, _, name = call.owner.partition(":")
            found.append(inspect.getattr_static(getattr(import_module(module), name), call.method))
        return found

    traced = methods()
    QuorumbookInstrumentor().uninstrument()
    plain = methods()
    assert all(old is new.__wrapped__ for old, new in zip(plain, traced, strict=True))
    QuorumbookInstrumentor().instrument()
