"""``quorumbook recovery run``: auto-recovery as a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import fields
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.common import Call, Command, configure_logging
from quorumbook.cli.stopping import stop_wanted

if TYPE_CHECKING:
    from quorumbook.autorecovery.process import AutoRecovery, RecoveryOptions
    from quorumbook.bookie.http import Page
    from quorumbook.config import Settings
    from quorumbook.env import Env


@click.command(cls=Command, has_peer_file=True)
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.pass_obj
def run(call: Call, stop_with_parent: bool) -> None:
    """Run auditor and replication worker until Ctrl-C or SIGTERM."""
    call.show_warnings()
    configure_logging(is_verbose=call.is_verbose)
    call.run(_serve(call, is_child=stop_with_parent))


def http_port(settings: Settings) -> int | None:
    """Return the port for metrics and health in the bookie's terms: None is off, -1 a free one."""
    if not settings["http.enabled"].value:
        return None
    return settings.integer("http.port") or -1


def recovery_options(settings: Settings, name: str = "") -> RecoveryOptions:
    """Make auto-recovery's options of the configuration."""
    from quorumbook.autorecovery.auditor import AuditorOptions
    from quorumbook.autorecovery.process import RecoveryOptions
    from quorumbook.autorecovery.worker import WorkerOptions

    values: dict[str, Any] = settings.section("recovery")
    values.pop("in_bookie")  # for whoever runs it
    worker = {field.name: values.pop(field.name) for field in fields(WorkerOptions)}
    return RecoveryOptions(
        name=values.pop("name") or name or f"{socket.gethostname()}:{os.getpid()}",
        auditor=AuditorOptions(**values),
        worker=WorkerOptions(**worker),
    )


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
    import quorumbook
    from quorumbook.autorecovery import pages
    from quorumbook.autorecovery.process import AutoRecovery
    from quorumbook.config.clients import client_options

    options = recovery_options(settings, name)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            quorumbook.connect(call.metadata_uri, env=env, **client_options(settings))
        )
        answers = pages.RecoveryPages(client.store)
        stack.callback(answers.close)
        running = AutoRecovery(client, options)
        stack.push_async_callback(running.stop)
        running.start()
        yield running, {pages.ROOT: answers.answer}


async def _serve(call: Call, *, is_child: bool) -> None:
    from quorumbook.bookie import budget_pages
    from quorumbook.bookie.http import HttpServer
    from quorumbook.bookie.http_access import HttpAccess
    from quorumbook.bookie.metrics import budget_families, exposition
    from quorumbook.env import Env

    settings, env = call.settings, Env()
    env.background.rate_bytes = settings.integer("background.io_rate_bytes")
    stop = await stop_wanted(with_parent=is_child)
    async with contextlib.AsyncExitStack() as stack:
        running, pages = await stack.enter_async_context(auto_recovery(call, settings, env))
        row = {"name": running.name}
        port = http_port(settings)
        if port is not None:
            pages[budget_pages.ROOT] = partial(budget_pages.answer, env.background)
            http = HttpServer(
                env,
                settings.text("http.host"),
                max(port, 0),
                is_ready=lambda: running.is_ready,
                metrics=lambda: exposition(
                    lambda: chain(running.families(), budget_families(env.background))
                ),
                pages=pages,
                access=HttpAccess(
                    (settings.text("http.host"), *settings.texts("http.names")),
                    settings.text("http.token_file"),
                ),
            )
            await http.start()
            stack.push_async_callback(http.stop)
            row["http"] = f"http://{settings.text('http.host')}:{http.port}"
        call.output.record(row)
        sys.stdout.flush()
        await stop.wait()
