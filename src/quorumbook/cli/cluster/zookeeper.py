"""``quorumbook zookeeper``: run a ZooKeeper that is on this machine anyway."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.serving.logs import begin_log

if TYPE_CHECKING:
    from quorumbook.zookeeper_server import Member, ZooKeeperServer

_ALIVE_INTERVAL_S = 0.2


@click.group(cls=Commands)
def zookeeper() -> None:
    """Run a ZooKeeper for a cluster's metadata."""


@zookeeper.command(cls=ClusterCommand, has_metadata=False, has_log=True)
@click.option("--data-dir", metavar="DIR", required=True, help="Where its data is kept.")
@click.option("--port", type=click.IntRange(1, 65535), default=2181, show_default=True,
              help="Where clients reach it.")  # fmt: skip
@click.option("--host", metavar="A", default="127.0.0.1", show_default=True,
              help="The address to listen on.")  # fmt: skip
@click.option("--servers", metavar="A:P:E,...",
              help="All of an ensemble: address, port for each other, for elections.")  # fmt: skip
@click.option("--id", "number", metavar="N", type=click.IntRange(1),
              help="Which of --servers this is, from 1 on.")  # fmt: skip
@click.option("--classpath", metavar="PATH", help="Jars of a ZooKeeper, or their directory.")
@click.pass_obj
def run(
    call: Call,
    data_dir: str,
    port: int,
    host: str,
    servers: str | None,
    number: int | None,
    classpath: str | None,
) -> None:
    """Run a ZooKeeper until Ctrl-C or SIGTERM."""
    from quorumbook.zookeeper_server import ZooKeeperServer

    begin_log(call.settings, is_verbose=call.is_verbose, usual="warning")
    members, index = _ensemble(servers, number)
    server = ZooKeeperServer(
        os.path.abspath(data_dir),
        port,
        host=host,
        classpath=classpath,
        members=members,
        index=index,
    )
    call.run(_serve(call, server))


def _ensemble(servers: str | None, number: int | None) -> tuple[list[Member], int]:
    from quorumbook.zookeeper_server import Member

    if servers is None:
        if number is not None:
            raise click.UsageError("add --servers: --id says which of them this is")
        return [], 0
    members = []
    for text in servers.split(","):
        host, *ports = text.rsplit(":", 2)
        if not host or len(ports) != 2 or not all(each.isdecimal() for each in ports):
            raise click.UsageError(f"--servers: {text!r} is not of the form ADDRESS:PORT:PORT")
        members.append(Member(host, int(ports[0]), int(ports[1])))
    if number is None or number > len(members):
        raise click.UsageError(
            f"--id says which of the {len(members)} --servers this is, from 1 on"
        )
    return members, number - 1


async def _serve(call: Call, server: ZooKeeperServer) -> None:
    from quorumbook.cli.cluster.supervisor import ChildFailedError

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server.start()
    is_announced = False
    try:
        while not stop.is_set():
            if server.poll() is not None:
                raise ChildFailedError(f"ZooKeeper ended: {server.last_word()}")
            # One of an ensemble waits for the others for as long as it takes.
            if not is_announced and await asyncio.to_thread(lambda: bool(server.mode())):
                call.output.record({"metadata": f"zk://{server.address}/ledgers"})
                sys.stdout.flush()
                is_announced = True
            try:
                async with asyncio.timeout(_ALIVE_INTERVAL_S if is_announced else 0.05):
                    await stop.wait()
            except TimeoutError:
                continue
    finally:
        await asyncio.to_thread(server.stop)
