"""``quorumbook recovery run``: auto-recovery as a process of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.serving.stopping import stop_wanted
from quorumbook.cli.serving.telemetry import send_metrics
from quorumbook.client.context import client_store

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from quorumbook.autorecovery.process import AutoRecovery
    from quorumbook.bookie.http.server import Page
    from quorumbook.config import Settings
    from quorumbook.env import Env


@click.command(cls=ClusterCommand, has_peer_file=True, has_log=True)
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.pass_obj
def run(call: Call, stop_with_parent: bool) -> None:
    """Run auditor and replication worker until Ctrl-C or SIGTERM."""
    call.show_warnings()
    begin_log(call.settings, is_verbose=call.is_verbose)
    call.run(_serve(call, is_child=stop_with_parent))


@contextlib.asynccontextmanager
async def auto_recovery(
    call: Call, settings: Settings, env: Env, *, name: str = ""
) -> AsyncIterator[tuple[AutoRecovery, dict[str, Page]]]:
    """Run auto-recovery for the length of a block; yield it and its pages.

    Args:
        call: Says where the metadata is.
        settings: The configuration.
        env: The process's; its background budget is shared.
        name: Of the bookie that it lives beside, if it does.
    """
    from quorumbook.autorecovery import pages
    from quorumbook.autorecovery.process import AutoRecovery
    from quorumbook.client.client import BookKeeper
    from quorumbook.config.made import client_options, recovery_options

    options = recovery_options(settings, name)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            BookKeeper(call.metadata_uri, options=client_options(settings), env=env)
        )
        answers = pages.RecoveryPages(client_store(client))
        stack.callback(answers.close)
        running = AutoRecovery(client, options)
        stack.push_async_callback(running.stop)
        running.start()
        yield running, dict.fromkeys(pages.PAGES, answers.answer)


async def _serve(call: Call, *, is_child: bool) -> None:
    from quorumbook.bookie.http import background_io as budget_pages
    from quorumbook.bookie.http.access import HttpAccess
    from quorumbook.bookie.http.server import HttpServer
    from quorumbook.bookie.metrics import budget_families, exposition
    from quorumbook.config.made import http_options
    from quorumbook.env import Env

    settings, env = call.settings, Env()
    env.background.rate_bytes = settings.integer("background.io_rate_bytes")
    stop = await stop_wanted(with_parent=is_child)
    async with contextlib.AsyncExitStack() as stack:
        running, pages = await stack.enter_async_context(auto_recovery(call, settings, env))

        http: HttpServer | None = None

        def families() -> Iterable[Metric]:
            of_http = http.families() if http is not None else ()
            return chain(running.families(), budget_families(env.background), of_http)

        send_metrics(families)
        row = {"name": running.name}
        where = http_options(settings)
        if where is not None:
            answer = partial(budget_pages.answer, env.background)
            pages |= dict.fromkeys(budget_pages.PAGES, answer)
            http = HttpServer(
                env,
                where.host,
                where.port,
                is_ready=lambda: running.is_ready,
                metrics=lambda: exposition(families),
                pages=pages,
                access=HttpAccess((where.host, *where.names), where.token_file),
            )
            await http.start()
            stack.push_async_callback(http.stop)
            row["http"] = f"http://{where.host}:{http.port}"
        call.output.record(row)
        sys.stdout.flush()
        await stop.wait()
