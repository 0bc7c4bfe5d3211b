"""``quorumbook metadata``: move the metadata of a cluster between stores, or keep it in a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.progress import progress

if TYPE_CHECKING:
    from quorumbook.metadata.dump import DumpReader
    from quorumbook.metadata.store import MetadataStore
    from quorumbook.metadata.transfer import Report, Summary

_ONLINE = click.option(
    "--online",
    is_flag=True,
    help="Go on although bookies are registered; what changes meanwhile may be missing.",
)


@click.group(cls=Commands)
def metadata() -> None:
    """Move a cluster's metadata to another store, or into a file."""


@metadata.command(cls=ClusterCommand, has_metadata=False)
@click.argument("source", metavar="FROM")
@click.argument("file", metavar="FILE")
@_ONLINE
@click.pass_obj
def dump(call: Call, source: str, file: str, online: bool) -> None:
    """Write the metadata at the URI FROM into FILE."""
    from quorumbook.errors import MetadataMoveError
    from quorumbook.metadata.dump import DumpReader

    if os.path.exists(file):
        raise MetadataMoveError(f"{file} exists already; name a new file")
    with _new_file(file) as opened:
        summary = call.run(_dump(call, source, opened, is_online=online))
        DumpReader(opened, file)
    _tell(call, {"file": file}, summary)


@metadata.command(cls=ClusterCommand, has_metadata=False)
@click.argument("file", metavar="FILE")
@click.argument("target", metavar="TO")
@click.option(
    "--skip-ids",
    is_flag=True,
    help="The cluster went on after the dump: give no ledger id that it may have given since.",
)
@click.pass_obj
def restore(call: Call, file: str, target: str, skip_ids: bool) -> None:
    """Make a cluster out of FILE at the URI TO, where there must be none."""
    from quorumbook.metadata.dump import DumpReader

    with open(file, "rb") as opened:
        # The whole file is checked before the target is so much as opened.
        reader = DumpReader(opened, file)
        summary = call.run(_restore(call, reader, target, leap=skip_ids))
    _tell(call, {"metadata": target}, summary)


@metadata.command(cls=ClusterCommand, has_metadata=False)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@_ONLINE
@click.pass_obj
def copy(call: Call, source: str, target: str, online: bool) -> None:
    """Copy the metadata at the URI FROM to the URI TO, where there must be none."""
    summary = call.run(_copy(call, source, target, is_online=online))
    _tell(call, {"metadata": target}, summary)


async def _dump(call: Call, uri: str, file: BinaryIO, *, is_online: bool) -> Summary:
    from quorumbook.metadata.transfer import dump_metadata

    async with _opened(call, uri) as store:
        with _bars() as report:
            return await dump_metadata(store, file, is_online=is_online, report=report)


async def _restore(call: Call, reader: DumpReader, uri: str, *, leap: bool) -> Summary:
    from quorumbook.metadata.transfer import restore_metadata

    async with _opened(call, uri, create=True) as store:
        with _bars(reader.nodes) as report:
            return await restore_metadata(reader, store, leap=leap, report=report)


async def _copy(call: Call, source_uri: str, target_uri: str, *, is_online: bool) -> Summary:
    from quorumbook.metadata.transfer import ClusterReader, restore_metadata

    async with _opened(call, source_uri) as source:
        with _bars() as report:
            # A source that is refused must not leave a new, empty file where the target was to be.
            reader = await ClusterReader.open(source, is_online=is_online, report=report)
            async with _opened(call, target_uri, create=True) as target:
                return await restore_metadata(reader, target, report=report)


@contextlib.asynccontextmanager
async def _opened(call: Call, uri: str, *, create: bool = False) -> AsyncIterator[MetadataStore]:
    from quorumbook.metadata.uri import open_store

    call.use_metadata(uri)
    timeout_s = call.settings.number("metadata.session_timeout_s")
    store = await open_store(call.metadata_uri, create=create, session_timeout_s=timeout_s)
    try:
        yield store
    finally:
        await store.close()


@contextlib.contextmanager
def _new_file(path: str) -> Iterator[BinaryIO]:
    """Yield a file that gets its name, durably, when the block ends well.

    Only its owner may read it: the metadata holds the passwords of ledgers.
    """
    directory = os.path.dirname(os.path.abspath(path))
    fd, temporary = tempfile.mkstemp(dir=directory, prefix=f".{os.path.basename(path)}.")
    try:
        with open(fd, "w+b") as file:
            yield file
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _bars(total: int | None = None) -> Iterator[Report]:
    """Show one bar after the other, as the work goes on to its next stage."""
    with contextlib.ExitStack() as stack:
        stage = ""
        advance: Callable[[int], None] = _nothing

        def report(name: str, done: int) -> None:
            nonlocal stage, advance
            if name != stage:
                stack.close()
                known = None if name == "raising ids" else total
                stage, advance = name, stack.enter_context(progress(name, known))
            advance(done)

        yield report


def _nothing(_done: int) -> None:
    pass


def _tell(call: Call, where: dict[str, str], summary: Summary) -> None:
    call.output.record({**where, "nodes": summary.nodes, "ledgers": summary.ledgers})
