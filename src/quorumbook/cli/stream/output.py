"""Prints records in the form asked for; bare payloads without a step for each."""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.output import JSON, RAW, TABLE

if TYPE_CHECKING:
    from quorumbook.streams import Decoder, Notice, Record, RecordBatch

#: How payloads are shown; ``auto`` is text where they are, and base64.
DECODERS = ("auto", "text", "base64", "hex", "json", "schema")
decode_option = click.option(
    "--decode", type=click.Choice(DECODERS), default="auto", show_default=True,
    help="How payloads are shown; schema: as the stream's schema says.",
)  # fmt: skip
key_separator_option = click.option(
    "--key-separator", metavar="TEXT", help="Print keys before payloads, and this between them."
)


class RecordPrinter:
    """Prints batch after batch.

    Args:
        form: Of the output.
        decode: One of ``DECODERS``; bare payloads are shown as they are with ``auto``.
        key_separator: Between key and payload where no fields are shown; None: no keys there.
    """

    def __init__(self, form: str, decode: str, key_separator: str | None) -> None:
        self._form = form
        self._decode = decode
        self._separator = None if key_separator is None else key_separator.encode()
        self._decoder: Decoder | None = None
        self._count = 0

    @property
    def needs_decoder(self) -> bool:
        """Whether ``decode_by`` comes first."""
        return self._decode == "schema"

    def decode_by(self, decoder: Decoder) -> None:
        """Take what decodes payloads."""
        self._decoder = decoder

    def show(self, batch: RecordBatch) -> None:
        """Print a batch."""
        if self._form != RAW:
            for record in batch:
                self._show(record)
        elif self._decode == "auto" and self._separator is None:
            sys.stdout.buffer.write(b"\n".join(batch.payloads) + b"\n")
        else:
            sys.stdout.buffer.write(b"".join(map(self._line, batch)))

    def show_one(self, record: Record, partition: int) -> None:
        """Print a record of a partitioned stream."""
        if self._form == RAW:
            sys.stdout.buffer.write(self._line(record))
        else:
            self._show(record, partition)

    def _line(self, record: Record) -> bytes:
        payload = record.payload
        if self._decode != "auto":
            payload = _text(self._decoded(record, self._decode)).encode()
        if self._separator is None:
            return payload + b"\n"
        return (record.key or b"") + self._separator + payload + b"\n"

    def _show(self, record: Record, partition: int | None = None) -> None:
        if self._form == TABLE:
            decoded = self._decoded(record, "text" if self._decode == "auto" else self._decode)
            about = "".join(f"{name}={value}  " for name, value in _carried(record).items())
            where = "" if partition is None else f"p{partition:<5}"
            print(f"{where}{record.sequence_id:8}  {record.position!s:12}  {about}{_text(decoded)}")
        else:
            if self._form == JSON:
                # One value, whose records can be seen as they come.
                print(",\n" if self._count else "[", end="")
            row = self._row(record)
            if partition is not None:
                row = {"partition": partition, **row}
            print(json.dumps(row), end="" if self._form == JSON else "\n")
        self._count += 1

    def finish(self) -> None:
        """Print what has to come last."""
        if self._form == JSON:
            print("]" if self._count else "[]")

    def _row(self, record: Record) -> dict[str, object]:
        return {
            "sequence_id": record.sequence_id,
            "position": str(record.position),
            "txid": record.txid,
            "appended_at_ms": record.appended_at_ms,
            "bytes": len(record.payload),
            **_carried(record),
            **self._decoded(record, self._decode),
        }

    def _decoded(self, record: Record, decode: str) -> dict[str, Any]:
        if self._decoder is None:
            return _decoded(record, decode)
        from quorumbook.streams.errors import BadRecordError
        from quorumbook.streams.schemas.columns import plain

        try:
            return {"json": plain(self._decoder.value(record.payload, record.headers))}
        except BadRecordError as error:
            raise BadRecordError(
                f"record {record.position} does not fit the schema: {error}; --decode auto shows "
                "it as it is"
            ) from error


def gap_line(notice: Notice) -> str:
    """Return a line that says what is missing."""
    gap: Any = notice.item
    found = gap.record_count
    count = "records" if found is None else f"{found} record{'' if found == 1 else 's'}"
    return f"{count} missing between {gap.start} and {gap.end}: {gap.reason}"


def shown(data: bytes) -> str | dict[str, str]:
    """Return text, or an object that says that it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _carried(record: Record) -> dict[str, Any]:
    """Return what goes with a record, as far as there is anything."""
    found: dict[str, Any] = {}
    if record.key is not None:
        found["key"] = shown(record.key)
    if record.headers:
        found["headers"] = {name: shown(value) for name, value in record.headers.items()}
    if record.event_time_ms is not None:
        found["event_time_ms"] = record.event_time_ms
    return found


def _decoded(record: Record, decode: str) -> dict[str, Any]:
    """Return a payload under the name of what was made of it."""
    payload = record.payload
    if decode == "auto":
        text = shown(payload)
        return text if isinstance(text, dict) else {"text": text}
    if decode == "text":
        return {"text": payload.decode(errors="backslashreplace")}
    if decode == "base64":
        return {"base64": base64.b64encode(payload).decode()}
    if decode == "hex":
        return {"hex": payload.hex()}
    try:
        return {"json": json.loads(payload)}
    except ValueError as error:
        from quorumbook.streams.errors import BadRecordError

        raise BadRecordError(
            f"record {record.position} is not JSON: {error}; --decode auto shows it as it is"
        ) from error


def _text(decoded: dict[str, Any]) -> str:
    (value,) = decoded.values()
    return value if isinstance(value, str) else json.dumps(value)
