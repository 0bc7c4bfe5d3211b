"""``ledger put`` and ``ledger get``: whole files, byte for byte.

A file is a ledger whose entries, put together, are its bytes.  Its name is kept as custom
metadata.  ``get`` compares the number of bytes with the ledger's length, and every entry has its
digest, so what it delivers without an error is what was put.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.ledger.appending import EntryAppender
from quorumbook.cli.ledger.options import (
    custom_metadata,
    new_ledger,
    password_option,
    wanted_labels,
)
from quorumbook.cli.lines import chunks, refuse_unreadable
from quorumbook.cli.output import RAW
from quorumbook.cli.progress import progress
from quorumbook.errors import QuorumbookError, ReadFailedError

_ENTRY_BYTES = 256 * 1024
_NAME = "file-name"


@click.command(cls=ClusterCommand, form=RAW)
@click.argument("path", metavar="FILE")
@new_ledger
@click.pass_obj
def put(call: Call, /, path: str, password: bytes, **shape: Any) -> None:
    """Store a file as a new ledger, and print its id.

    A FILE of - is standard input.
    """
    refuse_unreadable([path])  # before there is a ledger for it
    row = call.run(_put(call, path, password, shape))
    call.output.record({"ledger_id": row["ledger_id"]} if call.output.form == RAW else row)
    call.note(f"{row['bytes']} bytes in ledger {row['ledger_id']}, SHA-256 {row['sha256']}")


@click.command(cls=ClusterCommand, forms=())
@click.argument("ledger_id", type=int, metavar="ID")
@click.option("--to", metavar="FILE", help="Write there [default: standard output].")
@click.option("--recover", is_flag=True, help="Close the ledger first if its writer is gone.")
@password_option
@click.pass_obj
def get(call: Call, ledger_id: int, to: str | None, recover: bool, password: bytes) -> None:
    """Write the file that is stored in a ledger."""
    with _target(to) as file:
        size, digest = call.run(_get(call, ledger_id, file, password, recover))
    call.note(f"{size} bytes of ledger {ledger_id}, SHA-256 {digest}")


@contextlib.contextmanager
def _target(path: str | None) -> Iterator[IO[bytes]]:
    """Open what is written to: standard output, or a file that is there in full or not at all."""
    if path is None:
        yield sys.stdout.buffer
        return
    if os.path.exists(path) and not os.path.isfile(path):
        # A device or a pipe is written, not replaced; a directory is refused by open.
        with open(path, "wb") as file:
            yield file
        return
    directory = os.path.dirname(path)
    if directory and not os.path.isdir(directory):
        raise FileNotFoundError(errno.ENOENT, "the directory does not exist", directory)
    temporary = f"{path}.part"
    try:
        with open(temporary, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


async def _put(call: Call, path: str, password: bytes, shape: dict[str, Any]) -> dict[str, object]:
    custom = custom_metadata(shape["custom"])
    total = None
    if path != "-":
        total = os.stat(path).st_size
        custom.setdefault(_NAME, os.path.basename(path).encode())
    digest = hashlib.sha256()
    async with call.connect() as bk:
        options = call.new_ledger_options(
            shape["ensemble_size"], shape["write_quorum"], shape["ack_quorum"]
        )
        writer = await bk.create_ledger(
            password=password,
            custom_metadata=custom,
            bookie_labels=wanted_labels(shape["bookie_labels"]),
            **options,
        )
        is_typed = path == "-" and sys.stdin.isatty()
        try:
            with progress("storing", total, is_bytes=True, is_wanted=not is_typed) as advance:
                appender = EntryAppender(writer, lambda _: None)
                async for chunk in chunks(path, _ENTRY_BYTES):
                    digest.update(chunk)
                    await appender.append([chunk])
                    advance(len(chunk))
                await appender.finish()
            await writer.close()
        except BaseException:
            # Half a file must not look like a file.
            await writer.abort()
            with contextlib.suppress(QuorumbookError):
                await bk.delete_ledger(writer.id)
            raise
    return {"ledger_id": writer.id, "bytes": writer.length, "sha256": digest.hexdigest()}


async def _get(
    call: Call, ledger_id: int, file: IO[bytes], password: bytes, recover: bool
) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    async with (
        call.connect() as bk,
        bk.open_ledger(ledger_id, password=password, recover=recover) as reader,
    ):
        if not reader.is_closed:
            raise ReadFailedError(
                f"ledger {ledger_id} is not closed, so its end is not certain; wait for its writer,"
                " or use --recover",
                ledger_id=ledger_id,
            )
        is_wanted = not file.isatty()
        with progress("reading", reader.length, is_bytes=True, is_wanted=is_wanted) as advance:
            async for batch in reader.read_batches():
                part: Sequence[bytes] = batch.payloads
                for payload in part:
                    digest.update(payload)
                    file.write(payload)
                    size += len(payload)
                advance(sum(map(len, part)))
        file.flush()
        if size != reader.length:
            raise ReadFailedError(
                f"ledger {ledger_id} gave {size} bytes and its metadata says {reader.length}",
                ledger_id=ledger_id,
            )
    return size, digest.hexdigest()
