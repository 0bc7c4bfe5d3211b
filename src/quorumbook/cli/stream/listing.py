"""``quorumbook stream ls``: names, or what the metadata says of each stream."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.listing import Listing, extent_options, listing_options
from quorumbook.cli.output import RAW, TABLE, Moment, Output, Row
from quorumbook.cli.stream.options import namespace_option, opened

if TYPE_CHECKING:
    from quorumbook.admin.facts.streams import StreamFacts, StreamFilter
    from quorumbook.streams import Namespace

_SORTS = ("name", "segments", "records", "bytes", "created", "completed")
_COLUMNS = (*_SORTS, "sealed", "writer")


@click.command(cls=ClusterCommand, form=RAW)
@click.argument("prefix", default="", metavar="[PREFIX]")
@click.option("-l", "--long", "is_long", is_flag=True,
              help="A table of what the metadata says of each.")  # fmt: skip
@click.option("--policy", "policies", multiple=True, metavar="NAME[=VALUE]",
              help="Only streams that set this policy themselves.")  # fmt: skip
@extent_options("bytes in completed segments", "created")
@listing_options(_SORTS)
@namespace_option
@click.pass_obj
def ls(
    call: Call, prefix: str, is_long: bool, policies: Sequence[str], min_size: int | None,
    max_size: int | None, older_than: float | None, newer_than: float | None, listing: Listing,
    path: str,
) -> None:  # fmt: skip
    """List streams, nested ones included.

    Each partition of a partitioned stream is a stream of its own.
    """
    from quorumbook.admin.facts.streams import StreamFilter

    now_ms = int(time.time() * 1000)
    wanted = StreamFilter(
        min_bytes=min_size,
        max_bytes=max_size,
        created_before_ms=None if older_than is None else now_ms - int(older_than * 1000),
        created_after_ms=None if newer_than is None else now_ms - int(newer_than * 1000),
        policy=_wanted_policy(policies),
    )
    is_filtered = wanted != StreamFilter()
    needs_facts = is_long or is_filtered or (listing.sort or "name").lstrip("-") != "name"
    output = call.output
    if is_long and not _is_form_given():
        output = Output(TABLE)
    empty = (
        "no stream fits; `quorumbook stream ls` without options lists all"
        if is_filtered or prefix
        else "no stream; `quorumbook stream create NAME` makes one"
    )

    async def run() -> None:
        from quorumbook.streams.errors import NamespaceNotBoundError

        columns = _COLUMNS if is_long else ("name",)
        try:
            async with opened(call, path) as namespace:
                if needs_facts:
                    rows = _facts_rows(call, namespace, prefix, wanted)
                else:
                    rows = _name_rows(namespace, prefix)
                found = listing.of(rows, call)
                shown = ({column: row[column] for column in columns} async for row in found)
                await output.stream(shown, columns, empty=empty)
        except NamespaceNotBoundError:
            # The first stream makes it.
            output.rows([], columns)
            call.note(empty)

    call.run(run())


def _is_form_given() -> bool:
    context = click.get_current_context()
    is_here = context.get_parameter_source("output_form") is ParameterSource.COMMANDLINE
    return is_here or context.find_root().params.get("output_form") is not None


def _wanted_policy(texts: Sequence[str]) -> dict[str, object]:
    from quorumbook.streams import StreamPolicy

    wanted: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if equals:
            wanted[name] = StreamPolicy.parse({name: value}, "--policy").given()[name]
        else:
            StreamPolicy.of({name: None})  # says what is no policy
            wanted[name] = None
    return wanted


async def _name_rows(namespace: Namespace, prefix: str) -> AsyncIterator[Row]:
    async for name in namespace.streams(prefix):
        yield {"name": name}


async def _facts_rows(
    call: Call, namespace: Namespace, prefix: str, wanted: StreamFilter
) -> AsyncIterator[Row]:
    from quorumbook.admin.facts.streams import stream_facts

    left_out: list[str] = []
    async for facts in stream_facts(namespace, prefix, left_out):
        for damage in facts.damaged:
            call.warn("metadata-format", f"a segment of {facts.info.name} is left out: {damage}")
        if wanted.takes(facts):
            yield _row(facts)
    for sentence in left_out:
        call.warn("metadata-format", sentence)


def _row(facts: StreamFacts) -> Row:
    info = facts.info
    return {
        "name": info.name,
        "segments": len(info.segments),
        "records": info.record_count,
        "bytes": facts.size_bytes,
        "created": Moment.known(facts.created_ms),
        "completed": Moment.known(facts.completed_ms),
        "sealed": info.is_sealed,
        "writer": info.writer or None,
    }
