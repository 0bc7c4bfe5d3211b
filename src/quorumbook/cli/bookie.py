"""``quorumbook bookie``: run one bookie, list all."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.adoption import adopt, give_back
from quorumbook.cli.common import Call, Command, configure_logging, tls_options
from quorumbook.cli.garbage import explain_gc, gc
from quorumbook.cli.output import FORMATS

if TYPE_CHECKING:
    from quorumbook.bookie.options import BookieOptions
    from quorumbook.bookie.server import Bookie
    from quorumbook.config import Settings


@click.group()
def bookie() -> None:
    """Run bookies and list them."""


bookie.add_command(adopt)
bookie.add_command(give_back)


@bookie.command(cls=Command, forms=FORMATS, has_peer_file=True)
@click.option("--port", type=click.IntRange(0, 65535), help="Where to listen; 0 is a free port.")
@click.option("--data-dir", metavar="DIR", help="Where journal and ledgers are kept.")
@click.option("--advertised-address", metavar="A", help="What clients connect to.")
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.pass_obj
def run(
    call: Call,
    port: int | None,
    data_dir: str | None,
    advertised_address: str | None,
    stop_with_parent: bool,
) -> None:
    """Run a bookie until Ctrl-C or SIGTERM."""
    call.show_warnings()
    settings = call.settings
    if port is not None:
        settings = settings.replaced("bookie.port", port, "--port")
    if advertised_address is not None:
        settings = settings.replaced(
            "bookie.advertised_host", advertised_address, "--advertised-address"
        )
    if data_dir is not None:
        settings = in_directory(settings, data_dir)
    configure_logging(is_verbose=call.is_verbose)
    call.run(_serve(call, settings, is_child=stop_with_parent))


def in_directory(settings: Settings, data_dir: str) -> Settings:
    """Put journal and ledgers below one directory, except where ``--set`` puts them elsewhere."""
    for key, name in (
        ("storage.journal_directory", "journal"),
        ("storage.ledger_directories", "ledgers"),
    ):
        if settings[key].source != "--set":
            settings = settings.replaced(key, os.path.join(data_dir, name), "--data-dir")
    return settings


def bookie_options(settings: Settings) -> BookieOptions:
    """Make a bookie's options of the configuration."""
    from quorumbook.bookie.options import BookieOptions
    from quorumbook.storage.gc.decisions import GcOptions
    from quorumbook.storage.options import StorageOptions

    values: dict[str, Any] = settings.section("bookie")
    storage: dict[str, Any] = settings.section("storage")
    storage.pop("peer_storage")  # for whoever adopts and gives back
    collected: dict[str, Any] = settings.section("gc")
    return BookieOptions(
        **{
            **values,
            "advertised_host": values["advertised_host"] or None,
            "bookie_id": values["bookie_id"] or None,
        },
        journal_directory=storage.pop("journal_directory"),
        further_journal_directories=storage.pop("further_journal_directories"),
        ledger_directories=storage.pop("ledger_directories"),
        index_directories=storage.pop("index_directories"),
        storage=StorageOptions(**storage),
        gc=GcOptions(**collected),
        tls=tls_options(settings),
        http_host=settings.text("http.host"),
        http_port=_http_port(settings),
    )


def _http_port(settings: Settings) -> int | None:
    """Return the port for metrics and health in the bookie's terms: None is off, -1 a free one."""
    if not settings["http.enabled"].value:
        return None
    return settings.integer("http.port") or -1


async def _serve(call: Call, settings: Settings, *, is_child: bool) -> None:
    from quorumbook.bookie.server import Bookie
    from quorumbook.env import Env
    from quorumbook.metadata.uri import open_store

    options = bookie_options(settings)
    env = Env()
    store = await open_store(
        call.metadata_uri, env, session_timeout_s=settings.number("metadata.session_timeout_s")
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        server = Bookie(env, options, store)
        await server.start()
        try:
            _announce(call, server, options.http_host)
            if is_child:
                await _watch_parent(stop)
            stopped = asyncio.create_task(server.wait_stopped())
            asked = asyncio.create_task(stop.wait())
            await asyncio.wait({stopped, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            if stopped.done():
                stopped.result()
            else:
                stopped.cancel()
        finally:
            await server.stop()
    finally:
        await store.close()


def _announce(call: Call, server: Bookie, http_host: str) -> None:
    """Say that the bookie serves; whoever started it waits for this."""
    host, port = server.address
    row = {"bookie_id": server.bookie_id, "address": f"{host}:{port}"}
    if server.http_port is not None:
        row["http"] = f"http://{http_host}:{server.http_port}"
    call.output.record(row)
    sys.stdout.flush()


async def _watch_parent(stop: asyncio.Event) -> None:
    """Stop when standard input ends: the process at its other end is gone, however it went."""

    class Pipe(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            stop.set()

    await asyncio.get_running_loop().connect_read_pipe(Pipe, sys.stdin)


bookie.add_command(gc)
bookie.add_command(explain_gc)


@bookie.command(cls=Command)
@click.pass_obj
def ls(call: Call) -> None:
    """List the registered bookies."""
    rows = call.run(_list(call))
    call.output.rows(
        rows,
        ["bookie_id", "state", "address", "http"],
        empty="no bookie is registered; `quorumbook bookie run` starts one",
    )


async def _list(call: Call) -> list[dict[str, object]]:
    from quorumbook.env import Env
    from quorumbook.metadata.registration import BookieRegistration
    from quorumbook.metadata.uri import open_store

    store = await open_store(call.metadata_uri, Env())
    try:
        registration = BookieRegistration(store)
        writable, read_only = await registration.bookies()
        rows: list[dict[str, object]] = []
        for state, bookie_ids in (("writable", writable), ("read-only", read_only)):
            for bookie_id in sorted(bookie_ids):
                info = await registration.service_info(bookie_id)
                row: dict[str, object] = {"bookie_id": bookie_id, "state": state}
                # A bookie that goes away meanwhile has no places any more.
                if info is not None:
                    host, port = info.address(bookie_id)
                    row["address"] = f"{host}:{port}"
                    for endpoint in info.endpoints:
                        if endpoint.protocol == "http":
                            row["http"] = f"http://{endpoint.host}:{endpoint.port}"
                rows.append(row)
        return rows
    finally:
        await store.close()
