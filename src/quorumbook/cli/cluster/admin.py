"""``quorumbook admin run`` and ``quorumbook console``: the HTTP API, and pages for a browser."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.serving.logs import begin_log
from quorumbook.cli.serving.stopping import stop_wanted

if TYPE_CHECKING:
    from quorumbook.config import Settings

_host_option = click.option("--host", metavar="A", help="Where to listen [default: 127.0.0.1].")
_port_option = click.option(
    "--port", type=click.IntRange(0, 65535), help="Its port; 0 is a free one [default: 8085]."
)


@click.group()
def admin() -> None:
    """Serve the HTTP API."""


@admin.command("run", cls=ClusterCommand, has_log=True)
@_host_option
@_port_option
@click.option("--stop-with-parent", is_flag=True, hidden=True)
@click.pass_obj
def run(call: Call, host: str | None, port: int | None, stop_with_parent: bool) -> None:
    """Serve the HTTP API and the console until Ctrl-C or SIGTERM."""
    begin_log(call.settings, is_verbose=call.is_verbose)
    call.run(_serve(call, _placed(call, host, port), is_child=stop_with_parent))


@click.command(cls=ClusterCommand, has_log=True)
@_host_option
@_port_option
@click.pass_obj
def console(call: Call, host: str | None, port: int | None) -> None:
    """Serve the console of a cluster for a browser, until Ctrl-C."""
    begin_log(call.settings, is_verbose=call.is_verbose, usual="warning")
    call.run(_serve(call, _placed(call, host, port), is_child=False))


def _placed(call: Call, host: str | None, port: int | None) -> Settings:
    settings = call.settings
    if host is not None:
        settings = settings.replaced("admin.host", host, "--host")
    if port is not None:
        settings = settings.replaced("admin.port", port, "--port")
    return settings


async def _serve(call: Call, settings: Settings, *, is_child: bool) -> None:
    from quorumbook.admin.http.service import Service, ServiceOptions
    from quorumbook.admin.options import AdminOptions
    from quorumbook.admin.server import AdminServer

    options = settings.made(AdminOptions)
    service = Service(
        ServiceOptions(
            metadata_uri=call.metadata_uri,
            connect=call.connect,
            token_file=options.token_file,
            bookie_token_file=settings.text("http.token_file"),
            io_rate_bytes=settings.integer("background.io_rate_bytes"),
            settings=_shown_settings(settings),
        )
    )
    server = AdminServer(options, service)
    await server.start()
    try:
        stop = await stop_wanted(with_parent=is_child)
        call.output.record({"url": server.url, "metadata": service.shown_uri})
        sys.stdout.flush()
        await stop.wait()
    finally:
        await server.stop()


def _shown_settings(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return what was set, without secrets."""
    from quorumbook.cli.config import shown_value

    return tuple(
        (setting.option.key, str(shown_value(settings, setting)))
        for setting in settings
        if not setting.is_default
    )
