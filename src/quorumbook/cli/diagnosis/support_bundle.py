"""``quorumbook support-bundle``: what somebody else needs to see, in one file, without secrets.

Everything in it comes from places that show no secrets, and is searched for them once more by
``env.redaction``; what is in it is listed before it is written.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tarfile
import time
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.errors import WRONG_USE
from quorumbook.errors import ConfigError, QuorumbookError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorumbook.admin.facts.bookies import BookieFacts

#: The end of each log, and of each answer with metrics.
_LOG_BYTES = 1 << 20
_TIMEOUT_S = 5.0


@click.command("support-bundle", cls=ClusterCommand, has_peer_file=True)
@click.option("--to", "path", metavar="FILE", default="quorumbook-support.tar.gz",
              show_default=True, help="The file to write; it must not exist.")  # fmt: skip
@click.option("--log", "logs", metavar="FILE", multiple=True,
              help="Add the end of this log; may be given several times.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Write it without asking.")
@click.pass_obj
def support_bundle(call: Call, path: str, logs: Sequence[str], yes: bool) -> int:
    """Write a file for somebody who helps: findings, configuration, metrics, logs.

    What is in it is listed first. Secrets are hidden; look at it yourself before you send it.
    """
    if os.path.exists(path):
        raise ConfigError(f"{path} exists already; give another file with --to")
    found = call.run(_collected(call)) | {f"logs/{_flat(log)}": _end_of(log) for log in logs}
    parts = {name: _without_secrets(text).encode() for name, text in found.items()}
    call.note(f"{path} will hold:")
    for name, content in parts.items():
        call.note(f"  {len(content):9,}  {name}")
    if not yes and not _is_confirmed():
        call.note("nothing is written; add --yes to confirm")
        return WRONG_USE
    _write(path, parts)
    call.output.record({"file": path, "parts": len(parts), "bytes": os.path.getsize(path)})
    return 0


def _is_confirmed() -> bool:
    return sys.stdin.isatty() and click.confirm("Write it?", err=True)


async def _collected(call: Call) -> dict[str, str]:
    """Return the parts by their names; what cannot be found out is a part that says why."""
    from quorumbook.admin.facts.cluster import cluster_facts
    from quorumbook.admin.facts.verdict import judge
    from quorumbook.cli.config import shown_value
    from quorumbook.cli.diagnosis.doctor import machine_checks
    from quorumbook.metadata.uri import open_store

    settings = call.settings
    options = {
        setting.option.key: {"value": shown_value(settings, setting), "source": setting.source}
        for setting in settings
    }
    checks = await machine_checks(call.metadata_uri, settings)
    parts = {
        "doctor.json": _json([check.row() for check in checks]),
        "configuration.json": _json(options),
    }
    try:
        timeout_s = settings.number("metadata.session_timeout_s")
        store = await open_store(call.metadata_uri, session_timeout_s=timeout_s)
        try:
            facts = await cluster_facts(store)
        finally:
            await store.close()
    except (QuorumbookError, OSError) as error:
        return parts | {"status.json": _json({"error": str(error)})}
    reasons = [reason.row() for reason in judge(facts).reasons]
    bookies = [bookie.row() | {"directories": bookie.directories} for bookie in facts.bookies]
    parts["status.json"] = _json({**facts.row(), "reasons": reasons, "bookies": bookies})
    asked = [bookie for bookie in facts.bookies if bookie.http]
    texts = await asyncio.gather(*(asyncio.to_thread(_metrics, bookie) for bookie in asked))
    for bookie, text in zip(asked, texts, strict=True):
        parts[f"metrics/{_flat(bookie.bookie_id)}.txt"] = text
    return parts


def _metrics(bookie: BookieFacts) -> str:
    from quorumbook.admin.activity.counts import read_metrics

    try:
        return read_metrics(bookie.http, max_bytes=_LOG_BYTES, timeout_s=_TIMEOUT_S)
    except OSError as error:
        return f"no answer: {error}\n"


def _end_of(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _LOG_BYTES, 0))
        return file.read(_LOG_BYTES).decode(errors="replace")


def _without_secrets(text: str) -> str:
    from quorumbook.env.redaction import redacted

    return redacted(text)


def _json(value: object) -> str:
    return json.dumps(value, default=str, indent=2) + "\n"


def _flat(name: str) -> str:
    """Return a name that is one file's in any archive."""
    return name.strip("/").replace("/", "_").replace(":", "_")


def _write(path: str, parts: dict[str, bytes]) -> None:
    # Whoever wrote it decides who sees it.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
        for name, content in parts.items():
            info = tarfile.TarInfo(f"quorumbook-support/{name}")
            info.size, info.mtime = len(content), int(time.time())
            bundle.addfile(info, io.BytesIO(content))
