"""Long lists: their pages and their order, with a bounded part of them in memory.

Without an order, rows are passed on as they come.  With one, as many are kept as the pages up to
the wanted one hold, whatever the list's length.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from quorumbook.cli.call import Call
from quorumbook.cli.output import Row
from quorumbook.cli.values import Written
from quorumbook.options import Kind

F = TypeVar("F", bound=Callable[..., Any])

#: How many rows a page has, and an ordered list, if nobody says it.
_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Listing:
    """Which part of a list is wanted, and in which order."""

    #: A column, with ``-`` before it if it falls; None: as it comes.
    sort: str | None
    page: int
    #: None: all.
    limit: int | None

    async def of(self, rows: AsyncIterable[Row], call: Call) -> AsyncIterator[Row]:
        """Yield the wanted rows, and say if there are more."""
        if self.limit is None:
            async for row in rows:
                yield row
            return
        first, end = (self.page - 1) * self.limit, self.page * self.limit
        count = 0
        async for row in rows if self.sort is None else _ordered(rows, self.sort, end + 1):
            if count == end:
                call.note(f"there are more: --page {self.page + 1} shows the next {self.limit:,}")
                return
            if count >= first:
                yield row
            count += 1
        if self.page > 1 and count <= first:
            call.note(f"there are {count:,} in all, so no page {self.page}")


async def _ordered(rows: AsyncIterable[Row], sort: str, count: int) -> AsyncIterator[Row]:
    """Yield the first ``count`` rows of the order; those without a value come last."""
    falls, column = sort.startswith("-"), sort.removeprefix("-")

    def rank(row: Row) -> tuple[bool, Any]:
        value = row[column]
        return ((value is None) != falls, 0 if value is None else value)

    kept: list[Row] = []

    def cut() -> None:
        kept.sort(key=rank, reverse=falls)
        del kept[count:]

    async for row in rows:
        kept.append(row)
        if len(kept) >= 2 * count:
            cut()
    cut()
    for row in kept:
        yield row


def listing_options(columns: Sequence[str]) -> Callable[[F], F]:
    """Add ``--sort``, ``--page`` and ``--limit``; the command gets a ``Listing``.

    Args:
        columns: Of rows; what people write has ``-`` where they have ``_``.
    """
    names = [column.replace("_", "-") for column in columns]

    def take(context: click.Context, _p: click.Parameter, sort: str | None) -> Listing:
        page, limit = context.params.pop("page"), context.params.pop("limit")
        if limit is None and (sort is not None or page > 1):
            limit = _LIMIT
        if sort is not None:
            sort = sort[0] + sort[1:].replace("-", "_")
        return Listing(sort, page, limit)

    def add(command: F) -> F:
        command = click.option(
            "--sort", "listing", callback=take, metavar="COLUMN",
            type=click.Choice([*names, *(f"-{name}" for name in names)]),
            help=f"Order by {', '.join(names)}; with - before it, the greatest first.",
        )(command)  # fmt: skip
        command = click.option(
            "--limit", type=click.IntRange(min=1), metavar="N", is_eager=True,
            help=f"Rows on a page [default: all; {_LIMIT} with --sort or --page].",
        )(command)  # fmt: skip
        return click.option(
            "--page", type=click.IntRange(min=1), metavar="N", default=1, is_eager=True,
            help="This page, from 1.",
        )(command)  # fmt: skip

    return add


def extent_options(size: str, age: str) -> Callable[[F], F]:
    """Add filters by size and by age.

    Args:
        size: What is that large, for the help.
        age: What was so long ago.
    """
    of_size, of_age = Written.amount(Kind.SIZE, minimum=0), Written.amount(Kind.DURATION, minimum=0)
    options = (
        ("--min-size", of_size, "SIZE", f"Only with at least this many {size}."),
        ("--max-size", of_size, "SIZE", f"Only with at most this many {size}."),
        ("--older-than", of_age, "DURATION", f"Only those {age} longer ago."),
        ("--newer-than", of_age, "DURATION", f"Only those {age} since then."),
    )

    def add(command: F) -> F:
        for flag, kind, metavar, text in reversed(options):
            command = click.option(flag, type=kind, metavar=metavar, help=text)(command)
        return command

    return add
