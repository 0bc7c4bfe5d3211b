"""``quorumbook doctor``: whether this machine is fit for a bookie, and reaches its cluster.

The exit code is the worst verdict: 0 ok, 1 warning, 2 critical.  ``status`` is about the cluster,
this command about the machine that it runs on.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.output import JSON, TABLE
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorumbook.admin.facts.bookies import BookieFacts
    from quorumbook.admin.facts.verdict import Judgement, VerdictReason
    from quorumbook.config import Settings


@click.command(cls=ClusterCommand, has_peer_file=True)
@click.option("--data-dir", metavar="DIR", help="Where a bookie would keep journal and ledgers.")
@click.pass_obj
def doctor(call: Call, data_dir: str | None) -> int:
    """Check whether this machine is fit for a bookie and reaches the cluster.

    The exit code is 0 (ok), 1 (warning) or 2 (critical). The disks are written to for a second or
    two; nothing stays there.
    """
    from quorumbook.admin.facts.verdict import Judgement
    from quorumbook.cli.bookie.commands import in_directory

    settings = call.settings
    if data_dir is not None:
        settings = in_directory(settings, data_dir)
    judgement = Judgement(tuple(call.run(machine_checks(call.metadata_uri, settings))))
    _show(call, judgement)
    return int(judgement.level)


async def machine_checks(metadata_uri: str, settings: Settings) -> list[VerdictReason]:
    """Return what all checks found."""
    from quorumbook.cli.diagnosis import machine
    from quorumbook.cli.diagnosis.certificates import certificate_checks
    from quorumbook.cli.diagnosis.cluster import look_at_cluster
    from quorumbook.cli.diagnosis.disks import disk_checks

    timeout_s = settings.number("metadata.session_timeout_s")
    seen = await look_at_cluster(metadata_uri, session_timeout_s=timeout_s)
    directories = [
        directory
        for name in ("journal_directories", "ledger_directories", "index_directories")
        for directory in settings.texts(f"storage.{name}")
    ]
    usage = settings.number("bookie.max_disk_usage")
    files = [*_certificate_files(settings), *_files_of_metadata(metadata_uri)]
    return [
        machine.version_check(),
        machine.clock_check(),
        *await asyncio.to_thread(disk_checks, directories, max_usage=usage),
        machine.files_check(),
        *await asyncio.to_thread(_network_checks, settings, seen.bookies),
        *seen.checks,
        *_tls_checks(settings),
        *certificate_checks(files, time.time_ns() // 1_000_000),
    ]


def _network_checks(settings: Settings, bookies: Sequence[BookieFacts]) -> list[VerdictReason]:
    from quorumbook.cli.diagnosis.machine import admin_serves, name_check, port_check

    listen = settings.text("bookie.host")
    is_anywhere = listen in ("", "0.0.0.0", "::")  # noqa: S104 - compared with
    host = settings.text("bookie.advertised_host") or ("" if is_anywhere else listen)
    serving = {
        int(place.rpartition(":")[2].strip("/")): f"bookie {bookie.bookie_id}"
        for bookie in bookies
        for place in (bookie.address, bookie.http)
        if place
    }
    admin_host, admin_port = settings.text("admin.host"), settings.integer("admin.port")
    if admin_serves(admin_host, admin_port):
        serving[admin_port] = "the console of a cluster"
    http = [("http", settings.text("http.host"), settings.integer("http.port"))]
    if not settings["http.enabled"].value:
        http = []
    return [
        name_check(host, listen),
        *(
            port_check(f"{section}.port", at, port, serving)
            for section, at, port in (
                ("bookie", listen, settings.integer("bookie.port")),
                *http,
                ("admin", admin_host, admin_port),
            )
        ),
    ]


def _tls_checks(settings: Settings) -> list[VerdictReason]:
    """Return whether the files of TLS can be used together, as a bookie would."""
    from quorumbook.cli.diagnosis.checks import failed, fine
    from quorumbook.config.made import tls_options
    from quorumbook.env import Env
    from quorumbook.env.tls import TlsContexts

    options = tls_options(settings)
    if options is None:
        return []
    try:
        TlsContexts(options, Env().clock, server_side=bool(options.certificate_file))
    except ConfigError as error:
        return [failed("tls", str(error))]
    return [fine("tls", "its files can be used")]


def _certificate_files(settings: Settings) -> list[str]:
    return [
        settings.text(key)
        for key in (
            "tls.certificate_file",
            "tls.ca_file",
            "admin.certificate_file",
            "admin.ca_file",
        )
        if settings.text(key)
    ]


def _files_of_metadata(uri: str) -> list[str]:
    from urllib.parse import parse_qs, urlsplit

    query = parse_qs(urlsplit(uri).query)
    return [*query.get("tls.certificate_file", ()), *query.get("tls.ca_file", ())]


def _show(call: Call, judgement: Judgement) -> None:
    form = call.output.form
    if form == JSON:
        rows = [check.row() for check in judgement.reasons]
        call.output.record({"status": judgement.level.name.lower(), "checks": rows})
    elif form == TABLE:
        _show_table(judgement)
    else:
        columns = ["level", "code", "text", "fix"]
        call.output.rows([check.row() for check in judgement.reasons], columns)


def _show_table(judgement: Judgement) -> None:
    from quorumbook.admin.facts.verdict import Level
    from quorumbook.admin.facts.words import counted

    for check in judgement.reasons:
        print(f"{check.level.name.lower():8}  {check.code:11}  {check.text}")
        if check.fix:
            print(f"{'':8}  {'':11}  -> {check.fix}")
    levels = Counter(check.level for check in judgement.reasons)
    bad = ", ".join(
        f"{counted(levels[level], noun)}"
        for level, noun in ((Level.CRITICAL, "critical finding"), (Level.WARNING, "warning"))
        if levels[level]
    )
    print(f"\n{judgement.level.name}: {bad or 'this machine is fit for a bookie'}")
