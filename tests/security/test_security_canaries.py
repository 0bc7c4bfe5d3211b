"""Canaries instead of secrets, looked for in every answer over HTTP and in what is logged of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from security_harness import SOLO, secure_cluster

from quorumbook.autorecovery import pages as recovery_pages
from quorumbook.bookie.http.server import OWN_PATHS
from quorumbook.bookie.options import HttpOptions
from quorumbook.errors import ConfigError
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.digest import master_key
from quorumbook.spark.jobs import options as job_options
from quorumbook.spark.jobs.options import IngestOptions

SECRET, TOKEN, PASSWORD = "canary-of-a-secret", "canary-of-a-token", "canary-of-a-password"


def _paths(pages: Iterable[str]) -> list[str]:
    """Return every path that a server has, by its own table, and one that it has not."""
    return sorted({*OWN_PATHS, "/nothing", *(page.partition(" ")[2] for page in pages)})


def _requests(paths: Iterable[str]) -> Iterator[str]:
    """Yield requests that are answered, and such as are refused in every way."""
    good = f"Authorization: Bearer {TOKEN}\r\n"
    for page in paths:
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            for header in ("", good, f"Authorization: Bearer {TOKEN}x\r\n", f"{good}Origin: x\r\n"):
                yield f"{method} {page} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n"
        yield f"PUT {page} HTTP/1.1\r\n{good}Content-Length: 3\r\n\r\n{{]}}"
        yield f"GET {page} HTTP/1.1\r\nHost: elsewhere.example\r\n{good}\r\n"


async def _ask(port: int, request: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_no_answer_over_http_and_no_log_of_it_has_a_secret(
    tmp_path: Any, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    files = {}
    for name, text in (("secrets", f"writer:{SECRET}"), ("token", TOKEN)):
        files[name] = tmp_path / name
        files[name].write_text(f"{text}\n")
        files[name].chmod(0o600)
    auth: Any = {"auth_plugin": "shared-secret", "auth_settings": str(files["secrets"])}
    served = {**auth, "http": HttpOptions(token_file=str(files["token"]))}
    said = []
    async with secure_cluster(tmp_path, **served) as cluster, cluster.connect(**auth) as bk:
        async with bk.create_ledger(**SOLO, password=PASSWORD.encode()) as ledger:
            await ledger.append(b"x")
        store = await open_store(cluster.uri)
        recovery = recovery_pages.RecoveryPages(store)
        pages = cluster.bookie.pages
        pages |= dict.fromkeys(recovery_pages.PAGES, recovery.answer)
        paths = _paths(pages)
        assert {"/metrics", "/api/v1/bookie/last_log_mark", "/api/v1/bookie/gc/resume_compaction",
                "/api/v1/autorecovery/trigger_audit"} < set(paths)  # fmt: skip
        port = cluster.bookie.http_port
        assert port is not None
        said = [await _ask(port, request) for request in _requests(paths)]
        # What an object prints is looked at wherever it is.
        said.append(repr(cluster.bookie._options))
        recovery.close()
        await store.close()
    statuses = {int(answer.split()[1]) for answer in said[:-1]}
    assert {200, 400, 401, 403, 404, 405, 421} <= statuses
    everything = "\n".join([*said, caplog.text])
    for secret in (
        SECRET.encode(),
        TOKEN.encode(),
        PASSWORD.encode(),
        master_key(PASSWORD.encode()),
    ):
        for form in (secret.decode("latin-1"), repr(secret)[2:-1], secret.hex(),
                     base64.b64encode(secret).decode().rstrip("=")):  # fmt: skip
            assert form not in everything


def test_no_login_of_an_address_is_in_the_file_of_any_job() -> None:
    address = f"s3a://writer:{SECRET}@bucket/rows"
    kept: dict[str, set[str]] = {}
    for job in vars(job_options).values():
        if not (isinstance(job, type) and issubclass(job, job_options.JobOptions)):
            continue
        needed: dict[str, Any] = {
            each.name: each.choices[0] if each.choices else "stream:x"
            for each in job.declared() if each.is_required
        }  # fmt: skip
        for each in job.declared():
            if each.choices or not isinstance(needed.get(each.name, each.default), str):
                continue
            with contextlib.suppress(ConfigError):  # a range, a time or a name is no address
                told = str(job(**{**needed, each.name: address}).arguments())
                assert SECRET not in told
                kept.setdefault(job.__name__, set()).update([each.name] * ("bucket" in told))
    assert kept["OffloadOptions"] == kept["RestoreOptions"] | {"to"}
    assert "out" in kept["ExportOptions"]
    assert "to_metadata" in kept["CrossClusterOptions"]
    assert "table" in kept["LakeSinkOptions"]


def test_no_secret_is_in_the_file_of_an_ingest_job() -> None:
    names = ("password", "passwd", "pwd", "fs.s3a.access.key", "sasl.credentials", "authToken")
    options = dict.fromkeys(names, SECRET)
    for scheme in ("jdbc:postgresql", "https"):
        options[f"url of {scheme}"] = f"{scheme}://writer:{SECRET}@db.example/rows"
    ingest = IngestOptions(
        source=f"s3a://writer:{SECRET}@bucket/rows", format="csv", target="ledger",
        reader_options={**options, "header": "true"},
    )  # fmt: skip
    told = ingest.arguments()
    assert SECRET not in str(told)
    assert told["src"] == "s3a://***@bucket/rows"
    assert told["option"]["header"] == "true"
