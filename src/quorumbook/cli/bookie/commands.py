"""``quorumbook bookie``: run one bookie, list all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from quorumbook.admin.facts.words import sized
from quorumbook.cli.bookie.adoption import adopt, give_back
from quorumbook.cli.bookie.beside import admin_beside
from quorumbook.cli.bookie.garbage import background_io, explain_gc, gc, gc_hold, scrub
from quorumbook.cli.bookie.moving import balance, decommission, drain, recover
from quorumbook.cli.bookie.processes import refuse_other_layout, serve_several
from quorumbook.cli.bookie.recovery_process import auto_recovery
from quorumbook.cli.bookie.slow import slow
from quorumbook.cli.bookie.state import can_stop, readonly
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.output import FORMATS, Worded
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.serving.stopping import stop_wanted
from quorumbook.cli.serving.telemetry import send_metrics

if TYPE_CHECKING:
    from quorumbook.admin.facts.bookies import BookieFacts
    from quorumbook.bookie.server import Bookie
    from quorumbook.config import Settings


@click.group(cls=Commands)
def bookie() -> None:
    """Run bookies and list them."""


for command in (
    adopt, give_back, recover, drain, decommission, balance, readonly, can_stop,
    gc, gc_hold, explain_gc, scrub, background_io, slow,
):  # fmt: skip
    bookie.add_command(command)


@bookie.command(cls=ClusterCommand, forms=FORMATS, has_peer_file=True, has_log=True)
@click.option("--port", type=click.IntRange(0, 65535), help="Where to listen; 0 is a free port.")
@click.option("--data-dir", metavar="DIR", help="Where journal and ledgers are kept.")
@click.option("--advertised-address", metavar="A", help="What clients connect to.")
@click.option(
    "--label",
    "labels",
    metavar="KEY=VALUE",
    multiple=True,
    help="A label of the bookie; may be given several times.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How many bookies to run here, for more than one core.",
)
@click.option("--process", type=int, hidden=True)
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.pass_obj
def run(
    call: Call,
    port: int | None,
    data_dir: str | None,
    advertised_address: str | None,
    labels: tuple[str, ...],
    processes: int,
    process: int | None,
    stop_with_parent: bool,
) -> int:
    """Run a bookie, or several of one machine, until Ctrl-C or SIGTERM."""
    call.show_warnings()
    settings = call.settings
    if port is not None:
        settings = settings.replaced("bookie.port", port, "--port")
    if advertised_address is not None:
        settings = settings.replaced(
            "bookie.advertised_host", advertised_address, "--advertised-address"
        )
    if labels:
        settings = settings.replaced("bookie.labels", labels, "--label")
    if data_dir is not None:
        settings = in_directory(settings, data_dir)
    name = "" if process is None else f"bookie-{process}"
    begin_log(settings, is_verbose=call.is_verbose, process=name)
    refuse_other_layout(settings, processes)
    if processes > 1:
        return call.run(serve_several(call, settings, processes, is_child=stop_with_parent))
    call.run(_serve(call, settings, is_child=stop_with_parent))
    return 0


def in_directory(settings: Settings, data_dir: str) -> Settings:
    """Put journal and ledgers below one directory, except where ``--set`` puts them elsewhere."""
    for key, name in (
        ("storage.journal_directories", "journal"),
        ("storage.ledger_directories", "ledgers"),
    ):
        if settings[key].source != "--set":
            settings = settings.replaced(key, os.path.join(data_dir, name), "--data-dir")
    return settings


async def _serve(call: Call, settings: Settings, *, is_child: bool) -> None:
    from quorumbook.bookie.server import Bookie
    from quorumbook.config.made import bookie_options
    from quorumbook.env import Env
    from quorumbook.env.allocator import giving_back
    from quorumbook.env.tasks import cancel_and_wait
    from quorumbook.metadata.uri import open_store

    options = bookie_options(settings)
    env = Env()
    env.background.rate_bytes = settings.integer("background.io_rate_bytes")
    store = await open_store(
        call.metadata_uri, env, session_timeout_s=settings.number("metadata.session_timeout_s")
    )
    try:
        server = Bookie(env, options, store)
        await server.start()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(server.stop)
            stack.push_async_callback(cancel_and_wait, [asyncio.create_task(giving_back())])
            stop = await stop_wanted(with_parent=is_child)
            if settings["recovery.in_bookie"].value:
                guest = auto_recovery(call, settings, env, name=server.bookie_id)
                running, pages = await stack.enter_async_context(guest)
                server.pages |= pages
                server.further_families = running.families
            send_metrics(server.metric_families)
            console = ""
            if settings["admin.in_bookie"].value:
                console = await stack.enter_async_context(admin_beside(call))
            _announce(call, server, console)
            stopped = asyncio.create_task(server.wait_stopped())
            asked = asyncio.create_task(stop.wait())
            await asyncio.wait({stopped, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if stopped.done():
                stopped.result()
            else:
                stopped.cancel()
        # What went wrong with stopping is not kept back.
        await server.wait_stopped()
    finally:
        await store.close()


def _announce(call: Call, server: Bookie, console: str) -> None:
    """Say that the bookie serves; whoever started it waits for this."""
    host, port = server.address
    row = {"bookie_id": server.bookie_id, "address": f"{host}:{port}"}
    if server.http_address is not None:
        row["http"] = f"http://{server.http_address}"
    if console:
        row["console"] = console
    call.output.record(row)
    sys.stdout.flush()


@bookie.command(cls=ClusterCommand)
@click.option(
    "--disks", is_flag=True, help="Show their directories instead: how full and how fast."
)
@click.option("--registered", is_flag=True, help="Only those that are up; reads no ledgers.")
@click.option("--state", type=click.Choice(["writable", "read-only", "down"]),
              help="Only bookies in this state.")  # fmt: skip
@click.pass_obj
def ls(call: Call, disks: bool, registered: bool, state: str | None) -> None:
    """List all bookies: writable, read-only, and those that are down.

    A bookie is down if it is not registered, but has a cookie, or a ledger names it.
    """
    bookies = call.run(_list(call, disks=disks, only_registered=registered))
    empty = "no bookie is registered; `quorumbook bookie run` starts one"
    if state is not None:
        bookies = [bookie for bookie in bookies if bookie.state == state]
        empty = f"no bookie is {state}; `quorumbook bookie ls` lists all"
    if disks:
        call.output.rows(
            [row for bookie in bookies for row in _directories_of(bookie)],
            ["bookie_id", "path", "use", "used", "free_bytes", "syncs", "sync_ms_mean", "error"],
            empty=empty,
        )
        return
    call.output.rows(
        [bookie.row() for bookie in bookies],
        ["bookie_id", "state", "address", "http", "rack", "labels", "ledgers", "reasons"],
        empty=empty,
    )


def _directories_of(bookie: BookieFacts) -> list[dict[str, object]]:
    """Return a bookie's directories; one that does not answer is a row with the reason."""
    own: dict[str, object] = {"bookie_id": bookie.bookie_id}
    if bookie.directories:
        return [own | dict(row) | _worded(row) for row in bookie.directories]
    if bookie.state == "down":
        return [own | {"error": "it is down"}]
    no_http = "it serves no HTTP; http.enabled turns that on"
    return [own | {"error": bookie.error or no_http}]


def _worded(row: Mapping[str, object]) -> dict[str, object]:
    """Return how full a directory is, with units for people."""
    used, free = row.get("used"), row.get("free_bytes")
    return {
        **({"used": Worded(used, f"{used:.0%}")} if isinstance(used, float) else {}),
        **({"free_bytes": Worded(free, sized(free))} if isinstance(free, int) else {}),
    }


async def _list(call: Call, *, disks: bool, only_registered: bool) -> list[BookieFacts]:
    from quorumbook.admin.facts.bookies import DOWN, ask_all, known_bookies
    from quorumbook.admin.facts.cluster import survey
    from quorumbook.env import Env
    from quorumbook.metadata.uri import open_store

    store = await open_store(call.metadata_uri, Env())
    try:
        named = None if only_registered else (await survey(store)).named
        known = await known_bookies(store, named)
        for problem in known.damaged:
            call.warn("metadata-format", problem)
        bookies = [b for b in known.bookies if not (only_registered and b.state == DOWN)]
        return list(await ask_all(tuple(bookies), disks=disks))
    finally:
        await store.close()
