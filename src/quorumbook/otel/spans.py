"""Which calls have a span, and what it says.

    create_ledger, open_ledger, recover_ledger    until the ledger is there
    append, append_batch                          until the bookies have it, or it failed
    read                                          until the last entry was handed out
    send                                          records into a stream, until they are safe
    receive                                       records that ``read`` brought; nothing while idle
    process                                       what an application does with one: ``processing``
    read_task, write_task                         of Spark, by ``spark.task_spans``

Attributes are those of OpenTelemetry's conventions for messaging, and ``quorumbook.*``; payloads,
keys, headers and passwords are in none.  Records carry the context of their ``send`` in headers
(W3C ``traceparent`` and ``tracestate``), so that ``receive`` and ``process`` link to it.  ``put``
has no span of its own, for it is the way of those who count nanoseconds; its records carry the
context that it was called in.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from quorumbook.errors import BackpressureError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.partitions.reader import PartitionRecord
from quorumbook.streams.reading.batches import Record

#: Where a handle has what knows its stream: a twin, a reader of partitions, a consumer.
_INNER = ("_aio", "_readers", "_partitions")
#: A span of many records links to so many appenders; collectors cut longer lists off.
_MOST_LINKS = 128

_Describe = Callable[..., dict[str, AttributeValue]]
_Wrap = Callable[["Tracing", "Traced", Callable[..., Any]], Callable[..., Any]]


class _OurHeaders(dict[str, bytes]):
    """Headers that carry the context of a span that is open already."""


class _OurAttributes(list[Attributes | None]):
    """Likewise, of many records."""


class Traced(NamedTuple):
    """A method, and the span that a call of it has."""

    #: ``module:Class``
    owner: str
    method: str
    span: str
    kind: SpanKind
    wrap: _Wrap
    describe: _Describe


class Tracing:
    """Traced methods in the place of plain ones, until they are taken out."""

    def __init__(self, tracer: Tracer, *, propagate: bool = True) -> None:
        """Take where spans go, and whether records carry their context."""
        self.tracer = tracer
        self.propagates = propagate
        self._plain: list[tuple[type, str, Any]] = []

    def put_into(self, calls: Sequence[Traced]) -> None:
        """Trace these methods."""
        for call in calls:
            module, _, name = call.owner.partition(":")
            owner = getattr(import_module(module), name)
            plain = inspect.getattr_static(owner, call.method)
            self._plain.append((owner, call.method, plain))
            setattr(owner, call.method, functools.wraps(plain)(call.wrap(self, call, plain)))

    def take_out(self) -> None:
        """Put the plain methods back."""
        while self._plain:
            owner, method, plain = self._plain.pop()
            setattr(owner, method, plain)

    def start(self, call: Traced, *of: Any, **more: Any) -> Span:
        """Start the span of a call."""
        attributes = call.describe(*of)
        name = f"{call.span} {attributes.get('messaging.destination.name', '')}".rstrip()
        return self.tracer.start_span(name, kind=call.kind, attributes=attributes, **more)


def context_of(record: Record | PartitionRecord) -> Context:
    """Return the context that a record was appended in; an empty one if it carries none."""
    plain = record.record if isinstance(record, PartitionRecord) else record
    carried = {
        name: value.decode("ascii", "replace")
        for name, value in plain.headers.items()
        if name in propagate.get_global_textmap().fields
    }
    return propagate.extract(carried, Context())


def environment_carrier() -> dict[str, str]:
    """Return what whoever started this process says of its trace."""
    names = ("traceparent", "tracestate")
    return {name: os.environ[name.upper()] for name in names if name.upper() in os.environ}


@contextlib.contextmanager
def processing(record: Record | PartitionRecord, what: str = "record") -> Iterator[Span]:
    """Open the span of what an application does with a record: a child of its ``send``.

    Args:
        record: As a reader or a consumer gave it.
        what: What the span says is processed; a stream's name, say.
    """
    tracer = trace.get_tracer("quorumbook")
    attributes = {"messaging.system": "quorumbook", "messaging.operation.type": "process"}
    with tracer.start_as_current_span(
        f"process {what}", context_of(record), SpanKind.CONSUMER, attributes
    ) as span:
        yield span


def _over(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.end()


# Ways of calling --------------------------------------------------------------------------------


def _awaited(tracing: Tracing, call: Traced, plain: Callable[..., Any]) -> Callable[..., Any]:
    async def traced(self: Any, *args: Any, **options: Any) -> Any:
        span = tracing.start(call, self, *args)
        with trace.use_span(span, end_on_exit=True):
            return await plain(self, *args, **options)

    return traced


def _batches(tracing: Tracing, call: Traced, plain: Callable[..., Any]) -> Callable[..., Any]:
    async def traced(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        span, count = tracing.start(call, self, *args), 0
        error: BaseException | None = None
        try:
            async with contextlib.aclosing(plain(self, *args, **options)) as batches:
                async for batch in batches:
                    count += len(batch)
                    yield batch
        except Exception as failed:
            error = failed
            raise
        finally:
            span.set_attribute("quorumbook.entries", count)
            _over(span, error)

    return traced


def _appended(tracing: Tracing, call: Traced, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A future is returned; the span ends with it."""

    def traced(self: Any, what: Any, *args: Any, **options: Any) -> Any:
        span = tracing.start(call, self, what)
        return _until_done(span, lambda: plain(self, what, *args, **options))

    return traced


def _sent(tracing: Tracing, call: Traced, plain: Callable[..., Any]) -> Callable[..., Any]:
    def traced(self: Any, what: Any, **options: Any) -> Any:
        if _is_ours(options):
            return plain(self, what, **options)
        many = list(what) if "batch" in call.method else None
        what = what if many is None else many
        span = tracing.start(call, self, what)
        if tracing.propagates:
            _inject(options, trace.set_span_in_context(span), many)
        return _until_done(span, lambda: plain(self, what, **options))

    return traced


def _put(tracing: Tracing, call: Traced, plain: Callable[..., Any]) -> Callable[..., Any]:
    del call

    def traced(self: Any, payload: Any, **options: Any) -> Any:
        is_traced = trace.get_current_span().get_span_context().is_valid
        if is_traced and tracing.propagates and not _is_ours(options):
            _inject(options, None, None)
        return plain(self, payload, **options)

    return traced


def _received(tracing: Tracing, call: Traced, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Records are returned; the span is made when there are some, with links to their appenders."""

    def note(self: Any, began_ns: int, records: Sequence[Record | PartitionRecord]) -> None:
        links: dict[Any, Link] = {}
        for record in records:
            context = trace.get_current_span(context_of(record)).get_span_context()
            if context.is_valid and len(links) < _MOST_LINKS:
                links.setdefault((context.trace_id, context.span_id), Link(context))
        span = tracing.start(call, self, records, links=list(links.values()), start_time=began_ns)
        span.end()

    async def traced(self: Any, *args: Any, **options: Any) -> Any:
        began_ns = time.time_ns()
        records = await plain(self, *args, **options)
        if records:
            note(self, began_ns, records)
        return records

    return traced


def _until_done(span: Span, begin: Callable[[], Any]) -> Any:
    try:
        future = begin()
    except BackpressureError:
        raise  # nothing was appended; who tries again has a span then
    except BaseException as error:
        _over(span, error)
        raise
    if not hasattr(future, "add_done_callback"):
        _over(span, None)  # of a call that waited
        return future

    def done(future: Any) -> None:
        is_cancelled = hasattr(future, "cancelled") and future.cancelled()  # not all can be
        _over(span, None if is_cancelled else future.exception())

    future.add_done_callback(done)
    return future


def _is_ours(options: Mapping[str, Any]) -> bool:
    return isinstance(options.get("headers"), _OurHeaders) or isinstance(
        options.get("attributes"), _OurAttributes
    )


def _inject(options: dict[str, Any], context: Context | None, many: Sequence[Any] | None) -> None:
    """Have a record, or many, carry a context; the present one if none is given."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    carried = {name: value.encode() for name, value in carrier.items()}
    if many is None:
        options["headers"] = _OurHeaders({**(options.get("headers") or {}), **carried})
        return
    given = options.get("attributes") or [None] * len(many)
    options["attributes"] = _OurAttributes([_with(each, carried) for each in given])


def _with(attributes: Attributes | None, carried: Mapping[str, bytes]) -> Attributes:
    if attributes is None:
        return Attributes(headers=tuple(carried.items()))
    headers = {**dict(attributes.headers), **carried}
    return attributes._replace(headers=tuple(headers.items()))


# What spans say ---------------------------------------------------------------------------------


def _of_client(client: Any, *args: Any) -> dict[str, AttributeValue]:
    """Say which ledger is opened, or how a new one is shaped; never the password."""
    del client
    first = args[0]
    return {"quorumbook.ledger.id": first} if isinstance(first, int) else {}


def _of_new_ledger(client: Any, options: Any, shape: Any, *_: Any) -> dict[str, AttributeValue]:
    del client, options
    return {
        "quorumbook.ensemble_size": shape.ensemble_size,
        "quorumbook.write_quorum_size": shape.write_quorum_size,
        "quorumbook.ack_quorum_size": shape.ack_quorum_size,
    }


def _of_recovery(driver: Any, *_: Any) -> dict[str, AttributeValue]:
    return {"quorumbook.ledger.id": getattr(driver, "_ledger_id")}  # noqa: B009


def _of_entry(writer: Any, payload: Any) -> dict[str, AttributeValue]:
    return {"quorumbook.ledger.id": writer.id, "messaging.message.body.size": _size(payload)}


def _of_numbered_entry(writer: Any, entry_id: Any, *_: Any) -> dict[str, AttributeValue]:
    return {"quorumbook.ledger.id": writer.id, "quorumbook.entry.id": entry_id}


def _of_ledger(ledger: Any, *_: Any) -> dict[str, AttributeValue]:
    return {"quorumbook.ledger.id": ledger.id}


def _of_read(
    ledger: Any, first: int, last: int | None = None, *_: Any
) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "quorumbook.ledger.id": ledger.id, "quorumbook.entry.first": first
    }  # fmt: skip
    return found if last is None else {**found, "quorumbook.entry.last": last}


def _size(payload: Any) -> int:
    return len(payload) if hasattr(payload, "__len__") else -1  # it will be refused


def _messaging(operation: str, handle: Any) -> dict[str, AttributeValue]:
    return {
        "messaging.system": "quorumbook",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": _stream_of(handle),
    }


def _stream_of(handle: Any) -> str:
    """Return the name of the stream that a writer or a reader is of; a partition is its whole."""
    while not hasattr(handle, "_context"):
        inner = next(name for name in _INNER if hasattr(handle, name))
        handle = getattr(handle, inner)
        if isinstance(handle, (dict, tuple)):
            handle = next(iter(handle.values() if isinstance(handle, dict) else handle))
    name: str = getattr(handle, "_context").name  # noqa: B009
    return name


def _of_record(writer: Any, payload: Any) -> dict[str, AttributeValue]:
    return {**_messaging("send", writer), "messaging.message.body.size": _size(payload)}


def _of_records(writer: Any, payloads: Any) -> dict[str, AttributeValue]:
    return {**_messaging("send", writer), "messaging.batch.message_count": len(payloads)}


def _of_received(reader: Any, records: Any) -> dict[str, AttributeValue]:
    found = {**_messaging("receive", reader), "messaging.batch.message_count": len(records)}
    group = getattr(reader, "group", None)
    return found if group is None else {**found, "messaging.consumer.group.name": group}


_CLIENT, _PRODUCER, _CONSUMER = SpanKind.CLIENT, SpanKind.PRODUCER, SpanKind.CONSUMER
_KEEPER, _RECOVERY = "quorumbook.client.client:BookKeeper", "quorumbook.client.recovery"
_LEDGER = "quorumbook.client.reading.reader:LedgerReader"
_WRITERS = ("quorumbook.client.writing.writer:LedgerWriter", "quorumbook.sync.writer:LedgerWriter")
_STREAMS = (
    "quorumbook.streams.writing.writer:StreamWriter",
    "quorumbook.sync.streams.writer:StreamWriter",
)
CLIENT_CALLS = (
    Traced(_KEEPER, "_create", "create_ledger", _CLIENT, _awaited, _of_new_ledger),
    Traced(_KEEPER, "_open", "open_ledger", _CLIENT, _awaited, _of_client),
    Traced(
        f"{_RECOVERY}:_RecoveryDriver", "run", "recover_ledger", _CLIENT, _awaited, _of_recovery
    ),
    Traced(_LEDGER, "_read", "read", _CLIENT, _batches, _of_read),
    Traced(_LEDGER, "_read_chunk", "read", _CLIENT, _awaited, _of_read),
    Traced(_LEDGER, "read_entry", "read", _CLIENT, _awaited, _of_read),
    *(
        Traced(writer, method, span, _CLIENT, _appended, describe)
        for writer in _WRITERS
        for method, span, describe in (
            ("append_nowait", "append", _of_entry),
            ("append_batch_nowait", "append_batch", _of_ledger),
        )
    ),
    Traced(_WRITERS[0], "append_at_nowait", "append", _CLIENT, _appended, _of_numbered_entry),
    *(
        Traced(writer, method, "send", _PRODUCER, wrap, describe)
        for writer in _STREAMS
        for method, wrap, describe in (
            ("append_nowait", _sent, _of_record),
            ("append_batch_nowait", _sent, _of_records),
            ("put", _put, _of_record),
        )
    ),
    # The twin's go to its loop's thread by themselves.
    Traced(_STREAMS[1], "append", "send", _PRODUCER, _sent, _of_record),
    Traced(_STREAMS[1], "append_batch", "send", _PRODUCER, _sent, _of_records),
    *(
        Traced(reader, "read", "receive", _CONSUMER, _received, _of_received)
        for reader in (
            "quorumbook.streams.reading.reader:BaseReader",
            "quorumbook.streams.partitions.reader:PartitionedReader",
            "quorumbook.streams.partitions.consumer:Consumer",
        )
    ),
)
