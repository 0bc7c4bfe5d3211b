"""``quorumbook bookie recover``, ``decommission``, ``drain`` and ``balance``: copies move.

All of them may be killed and given again: what is left to do stands in the ledgers' metadata.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.errors import NOT_NOW
from quorumbook.cli.known.names import bookie_ids
from quorumbook.cli.progress import progress
from quorumbook.client.context import client_context, client_store

if TYPE_CHECKING:
    from quorumbook import BookKeeper
    from quorumbook.autorecovery.copying.balance import Move
    from quorumbook.autorecovery.copying.moving import Moved, MoveOptions, Share
    from quorumbook.ids import BookieId, LedgerId

_dry_run = click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
_skip_open = click.option(
    "--skip-open", is_flag=True, help="Leave ledgers alone that are being written."
)
#: Where there is no terminal, somebody reads a line so often.
_LINE_EVERY_S = 10.0


@click.command(cls=ClusterCommand)
@click.argument("bookies", nargs=-1, required=True, shell_complete=bookie_ids)
@_dry_run
@_skip_open
@click.option("--delete-cookie", is_flag=True, help="Forget the bookies once nothing names them.")
@click.pass_obj
def recover(
    call: Call,
    bookies: Sequence[BookieId],
    dry_run: bool,
    skip_open: bool,
    delete_cookie: bool,
) -> int:
    """Copy what lost bookies held from the other replicas to others."""
    return call.run(_leave(call, bookies, dry_run, skip_open, delete_cookie, is_lost=True))


@click.command(cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@_dry_run
@_skip_open
@click.pass_obj
def drain(call: Call, bookie: BookieId, dry_run: bool, skip_open: bool) -> int:
    """Make a bookie read-only and move everything it holds, while it serves."""
    return call.run(_leave(call, [bookie], dry_run, skip_open, False, is_lost=False))


@click.command(cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@_dry_run
@_skip_open
@click.pass_obj
def decommission(call: Call, bookie: BookieId, dry_run: bool, skip_open: bool) -> int:
    """Take a bookie out of the cluster for good: move everything, then forget it."""
    return call.run(_decommission(call, bookie, dry_run, skip_open))


@click.command(cls=ClusterCommand)
@_dry_run
@click.option(
    "--within", type=click.FloatRange(0.001, 1), default=0.05, show_default=True,
    help="Largest difference between the shares of disks in use.",
)  # fmt: skip
@click.pass_obj
def balance(call: Call, dry_run: bool, within: float) -> int:
    """Move closed ledgers from full disks to empty ones."""
    return call.run(_balance(call, dry_run, within))


async def _decommission(call: Call, bookie: BookieId, dry_run: bool, skip_open: bool) -> int:
    async with call.connect() as client:
        is_there = bookie in await registered(client)
    if not is_there:
        return await _leave(call, [bookie], dry_run, skip_open, True, is_lost=True)
    code = await _leave(call, [bookie], dry_run, skip_open, False, is_lost=False)
    if code or dry_run:
        return code
    warn_still_runs(call, bookie)
    return NOT_NOW


def warn_still_runs(call: Call, bookie: BookieId) -> None:
    """Say that a bookie is empty and has to be stopped before it can be forgotten."""
    call.warn(
        "bookie-still-runs",
        f"{bookie} holds nothing any more, but it still runs; stop it, and give the same command "
        "again to have it forgotten",
    )


async def _leave(
    call: Call,
    bookies: Sequence[BookieId],
    dry_run: bool,
    skip_open: bool,
    delete_cookie: bool,
    *,
    is_lost: bool,
) -> int:
    from quorumbook.admin.facts.room import no_room
    from quorumbook.admin.facts.stopping import check_is_known
    from quorumbook.autorecovery.copying.moving import Mover, shares
    from quorumbook.errors import LocalProtocolError, NotEnoughBookiesError

    async with _connected(call) as client, contextlib.AsyncExitStack() as undo:
        alive = sorted(set(bookies) & await registered(client))
        if is_lost and alive:
            raise LocalProtocolError(
                f"{', '.join(alive)} is registered, not lost: `quorumbook bookie drain` moves what "
                "a bookie holds while it serves; to have it copied from others, stop it first"
            )
        if not is_lost and not alive:
            await check_is_known(client, bookies[0])
            raise LocalProtocolError(
                f"{bookies[0]} is not registered: it cannot be drained; `quorumbook bookie recover`"
                " copies what it held from the other replicas"
            )
        if not is_lost and not dry_run:
            if why := await no_room(client, bookies[0], skip_open=skip_open):
                raise NotEnoughBookiesError(why)
            await make_read_only(call, client, bookies[0], undo)
        chosen = [share async for share in shares(client, bookies)]
        for bookie in set(bookies).difference(*(share.bookies for share in chosen)):
            await check_is_known(client, bookie)
        if dry_run:
            _show_plan(call, chosen)
            return 0
        with _shown(call, "moving", sum(s.size_bytes for s in chosen), len(chosen)) as done:
            mover = Mover(
                client,
                bookies,
                _options(call, skip_open=skip_open),
                on_done=lambda share: done(share.size_bytes),
            )
            moved = await mover.run(chosen)
        # What came to the bookies, or was written, meanwhile.
        left = [share.ledger_id async for share in shares(client, bookies)]
        for ledger_id in set(left) - moved.blocked.keys():
            moved.blocked[ledger_id] = "a bookie got a place in it meanwhile"
            moved.for_later.add(ledger_id)
        if moved.blocked.keys() <= moved.for_later:
            undo.pop_all()
        removed = await forget(client, bookies) if delete_cookie and not left else []
    return _conclude(call, moved, removed)


@contextlib.asynccontextmanager
async def _connected(call: Call) -> AsyncIterator[BookKeeper]:
    """Connect a client that keeps to the budget of background work."""
    async with call.connect() as client:
        budget = client_context(client).env.background
        budget.rate_bytes = call.settings.integer("background.io_rate_bytes")
        yield client


async def forget(client: BookKeeper, bookies: Sequence[BookieId]) -> list[BookieId]:
    """Delete cookies, now that a whole listing of ledgers has not named the bookies (S80)."""
    from quorumbook.errors import NoSuchNodeError
    from quorumbook.metadata.bookies.cookies import CookieStore

    if set(bookies) & await registered(client):
        return []
    cookies = CookieStore(client_store(client))
    removed = []
    for bookie in bookies:
        with contextlib.suppress(NoSuchNodeError):
            await cookies.delete(bookie)
            removed.append(bookie)
    return removed


async def make_read_only(
    call: Call,
    client: BookKeeper,
    bookie: BookieId,
    undo: contextlib.ExitStack | contextlib.AsyncExitStack,
) -> None:
    """Have a running bookie take no new ledgers, say so, and leave to ``undo`` what takes it back.

    That is there before the bookie is asked: it may have done it when its answer is lost.
    """
    from quorumbook.admin.facts.bookie_http import is_held, is_held_read_only
    from quorumbook.admin.facts.bookies import http_of
    from quorumbook.cli.bookie.state import set_read_only
    from quorumbook.errors import QuorumbookError

    address = await http_of(client_store(client), bookie)
    off = f"quorumbook bookie readonly off {bookie}"
    if is_held_read_only(address):
        call.warn(
            "bookie-stays-read-only",
            f"{bookie} was made read-only before, and stays so; `{off}` takes that back",
        )
        return

    reason = f"drained by {_name()}"

    def take_back() -> None:
        try:
            found = set_read_only(call, address, is_read_only=False, reason=reason, is_own=True)
            if is_held(found):
                call.warn(
                    "bookie-stays-read-only",
                    f"{bookie} was made read-only by somebody else meanwhile, and stays so; "
                    f"`{off}` takes that back",
                )
            else:
                call.note(f"{bookie} takes new ledgers again, as it did before")
        except QuorumbookError as error:
            call.warn(
                "bookie-stays-read-only",
                f"{bookie} may still be read-only: {error}; `{off}` takes that back",
            )

    undo.callback(take_back)
    set_read_only(call, address, is_read_only=True, reason=reason, is_own=True)
    call.note(f"{bookie} is read-only; `{off}` takes that back")


async def registered(client: BookKeeper) -> frozenset[BookieId]:
    """Return the bookies that are there."""
    writable, read_only = await client.bookies()
    return writable | read_only


def _name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _options(call: Call, *, skip_open: bool = False) -> MoveOptions:
    from quorumbook.autorecovery.copying.moving import MoveOptions

    return MoveOptions(
        name=_name(),
        ledgers_at_a_time=call.settings.integer("recovery.ledgers_at_a_time"),
        open_ledger_grace_s=call.settings.number("recovery.open_ledger_grace_s"),
        skip_open=skip_open,
    )


def _show_plan(call: Call, chosen: Sequence[Share]) -> None:
    call.output.rows(
        [
            {
                "ledger_id": share.ledger_id,
                "state": share.state,
                "size_bytes": share.size_bytes,
                "bookies": share.bookies,
            }
            for share in chosen
        ],
        ("ledger_id", "state", "size_bytes", "bookies"),
        empty="there is nothing to move",
    )


def _conclude(call: Call, moved: Moved, removed: Sequence[BookieId]) -> int:
    call.output.record(
        {
            "ledgers": moved.ledgers,
            "copied_entries": moved.copied_entries,
            "copied_bytes": moved.copied_bytes,
            "forgotten": list(removed),
            "blocked": {str(ledger_id): reason for ledger_id, reason in moved.blocked.items()},
        }
    )
    for ledger_id, reason in moved.blocked.items():
        call.warn("ledger-in-the-way", f"ledger {ledger_id} is in the way: {reason}")
    return NOT_NOW if moved.blocked else 0


@contextlib.contextmanager
def _shown(
    call: Call, title: str, size_bytes: int, ledgers: int
) -> Iterator[Callable[[int], None]]:
    """Show progress and an estimate: a bar on a terminal, else a line now and then."""
    is_terminal = sys.stderr.isatty()
    began = told = time.monotonic()
    done_bytes = done_ledgers = 0
    with progress(title, size_bytes, is_bytes=True) as advance:

        def done(size: int) -> None:
            nonlocal done_bytes, done_ledgers, told
            done_bytes, done_ledgers = done_bytes + size, done_ledgers + 1
            advance(size)
            now = time.monotonic()
            if not is_terminal and now - told >= _LINE_EVERY_S:
                told = now
                left_s = (now - began) * (size_bytes - done_bytes) / max(1, done_bytes)
                call.note(
                    f"{done_ledgers} of {ledgers} ledgers, {done_bytes:,} of {size_bytes:,} bytes, "
                    f"about {left_s:.0f} s left"
                )

        yield done


async def _balance(call: Call, dry_run: bool, within: float) -> int:
    from quorumbook.autorecovery.copying.balance_plan import plan_balance
    from quorumbook.autorecovery.copying.moving import Moved, Mover, Share

    async with _connected(call) as client:
        moves = await plan_balance(client, within)
        if dry_run:
            call.output.rows(
                [_move_row(move) for move in moves],
                ("ledger_id", "source", "target", "size_bytes"),
                empty="the disks are about equally full",
            )
            return 0
        total = Moved()
        with _shown(call, "moving", sum(m.size_bytes for m in moves), len(moves)) as done:
            for source in dict.fromkeys(move.source for move in moves):
                own = [move for move in moves if move.source == source]
                targets: Mapping[LedgerId, BookieId] = {m.ledger_id: m.target for m in own}
                mover = Mover(
                    client, [source], _options(call, skip_open=True), targets=targets,
                    on_done=lambda share: done(share.size_bytes),
                )  # fmt: skip
                moved = await mover.run(
                    [Share(m.ledger_id, "closed", m.size_bytes, (source,)) for m in own]
                )
                total.add(moved)
    return _conclude(call, total, [])


def _move_row(move: Move) -> dict[str, object]:
    return {
        "ledger_id": move.ledger_id,
        "source": move.source,
        "target": move.target,
        "size_bytes": move.size_bytes,
    }
