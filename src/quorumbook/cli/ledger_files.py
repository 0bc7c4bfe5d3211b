"""``ledger put`` and ``ledger get``: whole files, byte for byte.

A file is a ledger whose entries, put together, are its bytes.  Its name is kept as custom
metadata.  ``get`` compares the number of bytes with the ledger's length, and every entry has its
digest, so what it delivers without an error is what was put.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from typing import IO, Any

import click

from quorumbook.cli.appending import Appender
from quorumbook.cli.common import Call, Command
from quorumbook.cli.ledger_options import custom_metadata, new_ledger, password_option
from quorumbook.cli.lines import chunks
from quorumbook.cli.output import RAW
from quorumbook.cli.progress import progress
from quorumbook.errors import ReadFailedError

_ENTRY_BYTES = 256 * 1024
_NAME = "file-name"


@click.command(cls=Command, form=RAW)
@click.argument("path", metavar="FILE")
@new_ledger
@click.pass_obj
def put(call: Call, /, path: str, password: bytes, **shape: Any) -> None:
    """Store FILE (or - for standard input) as a new ledger, and print its id."""
    row = call.run(_put(call, path, password, shape))
    call.output.record({"ledger_id": row["ledger_id"]} if call.output.form == RAW else row)
    call.note(f"{row['bytes']} bytes in ledger {row['ledger_id']}, SHA-256 {row['sha256']}")


@click.command(cls=Command, forms=())
@click.argument("ledger_id", type=int, metavar="ID")
@click.option("--to", metavar="FILE", help="Write there [default: standard output].")
@click.option("--recover", is_flag=True, help="Close the ledger first if its writer is gone.")
@password_option
@click.pass_obj
def get(call: Call, ledger_id: int, to: str | None, recover: bool, password: bytes) -> None:
    """Write the file that is stored in a ledger."""
    if to is None:
        size, digest = call.run(_get(call, ledger_id, sys.stdout.buffer, password, recover))
    else:
        # A file that is there in full or not at all.
        temporary = f"{to}.part"
        try:
            with open(temporary, "wb") as file:
                size, digest = call.run(_get(call, ledger_id, file, password, recover))
            os.replace(temporary, to)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
    call.note(f"{size} bytes of ledger {ledger_id}, SHA-256 {digest}")


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
        writer = await bk.create_ledger(password=password, custom_metadata=custom, **options)
        async with writer:
            with progress("storing", total, is_bytes=True) as advance:
                appender = Appender(writer, lambda _: None)
                async for chunk in chunks(path, _ENTRY_BYTES):
                    digest.update(chunk)
                    await appender.append([chunk])
                    advance(len(chunk))
                await appender.finish()
            size = writer.length
    return {"ledger_id": writer.id, "bytes": size, "sha256": digest.hexdigest()}


async def _get(
    call: Call, ledger_id: int, file: IO[bytes], password: bytes, recover: bool
) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    async with (
        call.connect() as bk,
        await bk.open_ledger(ledger_id, password=password, recover=recover) as reader,
    ):
        if not reader.is_closed:
            raise ReadFailedError(
                f"ledger {ledger_id} is not closed, so its end is not certain; wait for its writer,"
                " or use --recover",
                ledger_id=ledger_id,
            )
        with progress("reading", reader.length, is_bytes=True) as advance:
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
