"""What ``quorumbook stream write`` reads: lines, or JSON with what goes with a record."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import click

from quorumbook.cli.lines import groups_of_lines

if TYPE_CHECKING:
    from quorumbook.streams import (
        AppendedBatch,
        Attributes,
        Decoder,
        PartitionAppended,
        PartitionedWriter,
        StreamWriter,
    )

_PIECES_UNDER_WAY = 16
_PIECE_LINES = 1000
#: After ^C so long for what is on its way.
_LAST_WAIT_S = 1.0
#: A line of so many bytes may be larger than an entry, with what goes with it.
_LARGE_BYTES = 900_000
_JSON_NAMES = ("text", "base64", "hex", "json", "key", "headers", "event_time_ms", "txid")
#: What reading prints beside that, and writing gives anew.
_READ_NAMES = ("partition", "sequence_id", "position", "appended_at_ms", "bytes")


class InputPiece(NamedTuple):
    """Some records on their way into a stream."""

    payloads: list[bytes]
    attributes: list[Attributes | None] | None = None
    txids: list[int] | None = None


#: Makes records of lines.
Form: TypeAlias = Callable[[list[bytes]], InputPiece]


def line_form(key_separator: str | None, headers: Sequence[str]) -> Form:
    """Return what takes a line as a record, the part before a separator as its key."""
    from quorumbook.streams import Attributes

    given = tuple(map(_header, headers))
    if key_separator is None and not given:
        return InputPiece
    separator = (key_separator or "").encode()

    def read(lines: list[bytes]) -> InputPiece:
        if not separator:
            return InputPiece(lines, [Attributes(None, given)] * len(lines))
        parts = [line.partition(separator) for line in lines]
        return InputPiece(
            [value if found else key for key, found, value in parts],
            [Attributes(key if found else None, given) for key, found, _ in parts],
        )

    return read


def json_form(lines: list[bytes]) -> InputPiece:
    """Take each line as a JSON object such as ``stream read -o jsonl`` prints."""
    from quorumbook.streams import Attributes

    piece = InputPiece([], [], [])
    for line in filter(None, lines):
        try:
            row = json.loads(line)
            unknown = row.keys() - {*_JSON_NAMES, *_READ_NAMES}
            if unknown:
                raise ValueError(f"unknown field {min(unknown)}")
            piece.payloads.append(_payload(row))
            cast("list[Any]", piece.attributes).append(
                Attributes(
                    None if row.get("key") is None else value_of(row["key"]),
                    tuple((name, value_of(each)) for name, each in row.get("headers", {}).items()),
                    row.get("event_time_ms"),
                )
            )
            if "txid" in row:
                cast("list[int]", piece.txids).append(int(row["txid"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise click.UsageError(
                f"{line[:200].decode(errors='backslashreplace')} is not a record: {error}; its "
                f"fields are {', '.join(_JSON_NAMES)}"
            ) from error
    if not piece.txids:
        return piece._replace(txids=None)
    if len(piece.txids) != len(piece.payloads):
        raise click.UsageError("either all records have a txid, or none")
    return piece


def encoded_form(form: Form, decoder: Decoder) -> Form:
    """Return what encodes the records of a form, which are JSON, by a stream's schema."""
    from quorumbook.streams import Attributes, version_headers
    from quorumbook.streams.errors import BadRecordError

    version = tuple(version_headers(decoder.version).items())

    def encode(payload: bytes) -> bytes:
        try:
            return decoder.encode(json.loads(payload))
        except (ValueError, RecursionError, BadRecordError) as error:
            text = payload[:200].decode(errors="backslashreplace")
            raise click.UsageError(f"{text} does not fit the schema: {error}") from error

    def read(lines: list[bytes]) -> InputPiece:
        piece = form(lines)
        given = piece.attributes or [None] * len(piece.payloads)
        found = [each or Attributes() for each in given]
        return piece._replace(
            payloads=list(map(encode, piece.payloads)),
            attributes=[each._replace(headers=(*each.headers, *version)) for each in found],
        )

    return read


def _payload(row: dict[str, Any]) -> bytes:
    if "json" in row:
        return json.dumps(row["json"], separators=(",", ":"), ensure_ascii=False).encode()
    if "text" in row:
        return str(row["text"]).encode()
    if "hex" in row:
        return bytes.fromhex(row["hex"])
    if "base64" in row:
        return base64.b64decode(row["base64"], validate=True)
    raise ValueError("it has neither text nor base64, hex or json")


def value_of(shown: str | dict[str, str]) -> bytes:
    """Return the bytes that ``stream_output.shown`` made text of."""
    if isinstance(shown, dict):
        return base64.b64decode(shown["base64"], validate=True)
    return shown.encode()


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--header {text}: write NAME=VALUE")
    return name, value.encode()


async def append_lines(
    writer: StreamWriter | PartitionedWriter,
    files: Sequence[str],
    form: Form,
    expect: int | None,
    advance: Callable[[int], None],
    give_up: Callable[[int], None],
) -> None:
    """Append what files, or standard input, hold, as it arrives; to partitions by their keys.

    ``advance`` is told how many records were appended.  Those that were handed over when an error
    ends this are waited for and counted; after ^C, for a second, and ``give_up`` is told how many
    were not acknowledged by then.
    """
    under_way: deque[tuple[asyncio.Future[AppendedBatch | list[PartitionAppended]], int]] = deque()

    async def take_first() -> None:
        # Waiting for it alone would cancel it with us.
        await asyncio.wait([under_way[0][0]])
        advance(len(under_way.popleft()[0].result()))

    try:
        async for lines in groups_of_lines(files):
            for start in range(0, len(lines), _PIECE_LINES):
                piece = form(lines[start : start + _PIECE_LINES])
                if any(map(_is_large, piece.payloads)):
                    while under_way:
                        await take_first()
                    await _append_alone(writer, piece, expect, advance)
                    expect = None
                    continue
                options: dict[str, Any] = {} if expect is None else {"expected_sequence": expect}
                expect = None
                begun: Any = writer.append_batch(
                    piece.payloads, attributes=piece.attributes, txids=piece.txids, **options
                )
                under_way.append((asyncio.ensure_future(begun), len(piece.payloads)))
                while len(under_way) >= _PIECES_UNDER_WAY or (under_way and under_way[0][0].done()):
                    await take_first()
        while under_way:
            await take_first()
    except BaseException as error:
        if under_way:
            wait_s = _LAST_WAIT_S if isinstance(error, asyncio.CancelledError) else None
            await asyncio.wait([each for each, _ in under_way], timeout=wait_s)
        for appending, count in under_way:
            if not appending.done():
                appending.cancel()
                give_up(count)
            elif not appending.cancelled() and appending.exception() is None:
                advance(len(appending.result()))
        raise


async def abort(writer: StreamWriter | PartitionedWriter) -> None:
    """Stop a writer at once; what it was given and is not acknowledged may be written or not."""
    from quorumbook.streams import StreamWriter

    each = [writer] if isinstance(writer, StreamWriter) else list(writer.writers.values())
    await asyncio.gather(*(one.abort() for one in each))


def _is_large(payload: bytes) -> bool:
    """Tell whether a record fits into no batch."""
    return len(payload) > _LARGE_BYTES


async def _append_alone(
    writer: StreamWriter | PartitionedWriter,
    piece: InputPiece,
    expect: int | None,
    advance: Callable[[int], None],
) -> None:
    for number, payload in enumerate(piece.payloads):
        options: dict[str, Any] = {}
        if expect is not None and number == 0:
            options["expected_sequence"] = expect
        carried = None if piece.attributes is None else piece.attributes[number]
        await writer.append(
            payload,
            key=carried and carried.key,
            headers=dict(carried.headers) if carried else None,
            event_time_ms=carried and carried.event_time_ms,
            txid=None if piece.txids is None else piece.txids[number],
            **options,
        )
        advance(1)
