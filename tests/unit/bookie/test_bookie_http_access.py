"""Which HTTP requests are carried out: Host, Origin, tokens, and numbers that are none."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bookie_harness import ask_http, cluster, real_bookie
from click.testing import CliRunner

from quorumbook.autorecovery.pages import ROOT, RecoveryPages
from quorumbook.bookie.http.access import HttpAccess, is_loopback_only
from quorumbook.bookie.options import HttpOptions
from quorumbook.cli.main import root
from quorumbook.config import OPTIONS, Kind
from quorumbook.env.log import logger
from quorumbook.errors import ConfigError
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import LayoutKind, TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue

TOKEN = "0123456789abcdef"
PATH = "/api/v1/bookie/state/readonly?read_only=true"


def _token_file(
    tmp_path: Path, text: str = f"# for operators\n{TOKEN}\n", mode: int = 0o600
) -> str:
    path = tmp_path / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def _status(
    access: HttpAccess, method: str, headers: Mapping[str, str], reached: str, *, on_loopback: bool
) -> int:
    refusal = access.refusal(method, [*headers.items()], reached, on_loopback=on_loopback)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("host", "on_loopback", "off_loopback"),
    [
        ("127.0.0.1:8080", 200, 200),
        ("127.0.0.1", 200, 200),
        ("[::ffff:127.0.0.1]:8080", 200, 200),
        ("localhost:8080", 200, 200),
        ("LOCALHOST.", 200, 200),
        ("bookie-1:8080", 200, 200),
        ("Bookie-1.", 200, 200),
        ("127.0.0.2:8080", 421, 200),
        ("10.1.2.3:8080", 421, 200),
        ("[2001:db8::1]:8080", 421, 200),
        ("evil.example:8080", 421, 421),
        ("127.0.0.1.evil.example", 421, 421),
        ("localhost.evil.example", 421, 421),
        ("bookie-1.evil.example", 421, 421),
        ("evil.example@127.0.0.1", 421, 421),
        ("2130706433", 421, 421),
        ("0x7f.1", 421, 421),
        ("", 421, 421),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_request_names_a_host_of_ours(
    tmp_path: Path, host: str, on_loopback: int, off_loopback: int, method: str
) -> None:
    access = HttpAccess(("127.0.0.1", "bookie-1"), _token_file(tmp_path))
    headers = {"host": host, "authorization": f"Bearer {TOKEN}"}
    for expected, is_on_loopback in ((on_loopback, True), (off_loopback, False)):
        found = _status(access, method, headers, "127.0.0.1", on_loopback=is_on_loopback)
        assert found == expected


def test_localhost_is_no_name_of_an_address_that_others_reach() -> None:
    access = HttpAccess()
    assert _status(access, "GET", {"host": "localhost"}, "10.0.0.1", on_loopback=False) == 421


def test_two_hosts_are_none() -> None:
    both = [("host", "127.0.0.1"), ("host", "evil.example")]
    for headers in itertools.permutations(both):
        refusal = HttpAccess().refusal("GET", headers, "127.0.0.1", on_loopback=True)
        assert refusal is not None
        assert refusal.status == 400


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "put"])
@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:8080"])
@pytest.mark.parametrize("authorization", [None, TOKEN, "Bearer wrong", f"Bearer {TOKEN}"])
@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize("on_loopback", [False, True])
def test_only_who_may_changes_something(
    tmp_path: Path,
    method: str,
    origin: str | None,
    authorization: str | None,
    has_tokens: bool,
    on_loopback: bool,
) -> None:
    access = HttpAccess((), _token_file(tmp_path) if has_tokens else "")
    given = {"host": "127.0.0.1", "origin": origin, "authorization": authorization}
    headers = {name: value for name, value in given.items() if value is not None}
    expected = 200
    if method not in ("GET", "HEAD"):
        if origin is not None:
            expected = 403
        elif has_tokens:
            expected = 200 if authorization == f"Bearer {TOKEN}" else 401
        elif not on_loopback:
            expected = 403
    assert _status(access, method, headers, "127.0.0.1", on_loopback=on_loopback) == expected


@pytest.mark.parametrize(
    ("has_tokens", "authorization", "off_loopback"),
    [
        (False, None, 403),
        (True, None, 401),
        (True, "Bearer wrong", 401),
        (True, f"Bearer {TOKEN}", 200),
    ],
)
def test_off_loopback_who_has_all_of_the_index_read_needs_a_token(
    tmp_path: Path, has_tokens: bool, authorization: str | None, off_loopback: int
) -> None:
    access = HttpAccess((), _token_file(tmp_path) if has_tokens else "")
    headers = [("authorization", authorization)] if authorization else []
    for on_loopback, expected in ((True, 200), (False, off_loopback)):
        refusal = access.refusal(
            "GET", headers, "127.0.0.1", on_loopback=on_loopback, is_guarded=True
        )
        assert (200 if refusal is None else refusal.status) == expected


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", f"{TOKEN}\nshort\n", "ü" * 20])
def test_a_token_file_without_good_tokens_stops_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.token_file"):
        HttpAccess((), _token_file(tmp_path, text)).check()


async def test_a_bookie_does_not_start_with_a_token_file_that_everybody_reads(
    tmp_path: Path,
) -> None:
    path = _token_file(tmp_path, mode=0o644)
    async with cluster() as store:
        with pytest.raises(ConfigError, match="everybody may read it"):
            async with real_bookie(tmp_path, store, http=HttpOptions(token_file=path)):
                pass


def test_only_loopback_addresses_are_loopback() -> None:
    assert is_loopback_only(["127.0.0.1", "::1", "127.9.9.9"])
    for address in ("0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "rubbish"):
        assert not is_loopback_only(["127.0.0.1", address])


def _put(path: str, headers: str = "", host: str = "127.0.0.1") -> str:
    return f"PUT {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n"


async def test_a_web_page_changes_nothing_at_a_bookie_and_curl_does(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        port = bookie.http_port
        assert port is not None
        assert (await ask_http(port, _put(PATH, host="evil.example")))[0] == 421
        assert (await ask_http(port, _put(PATH, "Origin: null\r\n")))[0] == 403
        assert (await ask_http(port, "GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n"))[
            0
        ] == 421
        assert not bookie.disks.writability.is_read_only
        # What curl -X PUT -d '{"readOnly":true}' sends.
        body = '{"readOnly":true}'
        curl = (
            "User-Agent: curl/8.14.1\r\nAccept: */*\r\nContent-Length: 17\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
        )
        request = _put("/api/v1/bookie/state/readonly", curl, f"localhost:{port}") + body
        assert (await ask_http(port, request))[0] == 200
        assert bookie.disks.writability.is_read_only


async def test_off_loopback_a_change_needs_a_token_of_the_file_as_it_is_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bare: Any = {"http": HttpOptions(host="0.0.0.0")}
    async with cluster() as store:
        async with real_bookie(tmp_path / "bare", store, **bare) as bookie:
            assert bookie.http_port is not None
            assert (await ask_http(bookie.http_port, _put(PATH)))[0] == 403
        file = _token_file(tmp_path)
        bare = {"http": HttpOptions(host="0.0.0.0", token_file=file)}
        async with real_bookie(tmp_path / "told", store, **bare) as bookie:
            port = bookie.http_port
            assert port is not None
            old, new = (f"Authorization: Bearer {t}\r\n" for t in (TOKEN, TOKEN[::-1]))
            assert (await ask_http(port, _put(PATH)))[0] == 401
            assert (await ask_http(port, _put(PATH, new)))[0] == 401
            assert not bookie.disks.writability.is_read_only
            told = f"{PATH}&token={TOKEN}&a=1"
            assert (await ask_http(port, _put(told, old)))[0] == 200
            _token_file(tmp_path, TOKEN[::-1])
            assert (await ask_http(port, _put(PATH, old)))[0] == 401
            assert (await ask_http(port, _put(PATH, new)))[0] == 200
            os.unlink(file)
            assert (await ask_http(port, _put(PATH, new)))[0] == 503
            assert (await ask_http(port, "GET /heartbeat HTTP/1.1\r\n\r\n"))[0] == 200
    # What was admitted, and nothing else, is in the log with whom it was done for.
    done = [record.getMessage() for record in caplog.records if "carried out" in record.message]
    shown = [f"PUT {PATH}{query} is carried out for 127.0.0.1" for query in ("&token=***&a=1", "")]
    assert [line.rpartition(":")[0] for line in done] == shown
    assert TOKEN not in caplog.text


async def test_a_command_sends_the_token_of_its_configuration(tmp_path: Path) -> None:
    file = _token_file(tmp_path)
    async with (
        cluster() as store,
        real_bookie(tmp_path, store, http=HttpOptions(token_file=file)) as bookie,
    ):
        url = f"http://127.0.0.1:{bookie.http_port}"
        told = ["--set", f"http.token_file={file}"]
        for words in (
            ["readonly", "on", url],
            ["readonly", "off", url],
            ["gc", url],
            ["gc", "--suspend", url],
            ["scrub", "--now", url],
            ["background-io", "--rate-bytes", "5M", url],
        ):
            bare = await asyncio.to_thread(CliRunner().invoke, root, ["bookie", *words])
            assert "answers 401" in str(bare.exception or bare.output), words
            done = await asyncio.to_thread(CliRunner().invoke, root, ["bookie", *words, *told])
            assert done.exit_code == 0, done.output
            assert TOKEN not in done.output


async def test_a_damaged_node_costs_its_own_page_and_is_named() -> None:
    async with cluster() as store:
        pages = RecoveryPages(store)
        names = ("status", "who_is_auditor", "list_under_replicated_ledger",
                 "lost_bookie_recovery_delay")  # fmt: skip
        paths = TreePaths(store.ledgers_root)
        await UnderreplicationQueue(store).mark(7, ["b:1"])
        await UnderreplicationQueue(store).set_lost_bookie_delay_s(5)
        candidate = f"{paths.auditor_election}/V_0000000000"
        for node, costs in (
            (paths.underreplicated(8), None),
            (paths.underreplicated_lock(7), None),
            (f"{paths.underreplication}/lostBookieRecoveryDelay", "lost_bookie_recovery_delay"),
            (candidate, "who_is_auditor"),
            (paths.racks, None),
            (paths.ledger(LayoutKind.HIERARCHICAL, 7), None),
        ):
            before = await store.exists(node)
            if before is None:
                await create_with_parents(store, node, b"\xff")
            else:
                await store.set(node, b"\xff")
            for name in names:
                status, body = await pages.answer("GET", f"{ROOT}/{name}", {})
                assert status == (503 if name == costs else 200), (node, name)
                assert name != costs or node in str(body)
            _, listed = await pages.answer("GET", f"{ROOT}/list_under_replicated_ledger", {})
            assert isinstance(listed, list)
            assert listed[0]["missing_on"] == ("b:1",)
            await (store.delete(node) if before is None else store.set(node, before.data))
        pages.close()


async def test_a_delay_of_many_digits_is_a_bad_request() -> None:
    async with cluster() as store:
        pages = RecoveryPages(store)
        path = f"{ROOT}/lost_bookie_recovery_delay"
        for number in ("9" * 6000, "9" * 10, "٣", "-1", ""):
            for target, body in (
                (f"{path}?seconds={number}", {}),
                (path, {"delay_seconds": number}),
            ):
                assert (await pages.answer("PUT", target, body))[0] == 400
        assert (await pages.answer("PUT", f"{path}?seconds=60", {}))[0] == 200
        pages.close()


@pytest.mark.parametrize(
    "number", ["", "-1", "1.5", "1e9", "٣", "9" * 20, "9" * 6000, "1_000", "+1", "nan"]
)
async def test_a_bad_number_is_a_bad_request(
    tmp_path: Path, number: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert bookie.http_port is not None
        before = bookie._env.background.rate_bytes  # the machine's budget
        request = _put(f"/api/v1/background_io?rate_bytes={number}")
        status, text = await ask_http(bookie.http_port, request)
        assert (status, "Internal" in text) == (400, False)
        assert bookie._env.background.rate_bytes == before  # the machine's budget
        length = f"GET /api/v1/bookie/gc HTTP/1.1\r\nContent-Length: {number}\r\n\r\n"
        assert (await ask_http(bookie.http_port, length))[0] in (200, 400)
    assert "Traceback" not in caplog.text


async def test_no_request_gives_an_option_that_names_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, ran = tmp_path / "script", tmp_path / "ran"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    script.chmod(0o755)
    (tmp_path / "code_of_strangers.py").write_text(f"open({str(ran)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = [o.key for o in OPTIONS if o.kind in (Kind.PLUG_IN, Kind.PROGRAM)]
    assert len(names) == 4
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        # What it was made with is shown nowhere else as a whole.
        port, before = bookie.http_port, repr(bookie._options)
        assert port is not None
        for name in names:
            value = str(script) if name.endswith("script") else "code_of_strangers:Run"
            body = json.dumps({name: value})
            for page in (*bookie.pages, "PUT /api/v1/bookie/options"):
                for path, sent in ((f"{page}?{name}={value}", ""), (page, body)):
                    head = f"{path} HTTP/1.1\r\nContent-Length: {len(sent)}\r\n\r\n"
                    assert (await ask_http(port, head + sent))[0] != 500, path
        assert repr(bookie._options) == before  # as above
    assert not ran.exists()
    assert "code_of_strangers" not in sys.modules


async def test_what_others_send_writes_no_lines_of_a_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert bookie.http_port is not None
        reason = "full%0a2026-01-01 00:00:00 INFO forged%0d%1b[2J%C2%85%E2%80%A8"
        await ask_http(bookie.http_port, _put(f"{PATH}&reason={reason}".replace(" ", "%20")))
    told = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    asked, reason_told = told
    assert "full%0a2026-01-01%2000:00:00%20INFO%20forged%0d%1b[2J%C2%85%E2%80%A8" in asked
    assert "full\\n2026-01-01 00:00:00 INFO forged\\r\\x1b[2J\\x85\\u2028" in reason_told
    assert all(line.isprintable() for line in told)


def test_an_errors_text_writes_no_lines_of_a_log_either(caplog: pytest.LogCaptureFixture) -> None:
    log = logger("tests")
    try:
        raise ValueError("rubbish\n2026-01-01 forged \x1b[2J")
    except ValueError as error:
        log.exception("failed: %s", error)
    lines = caplog.text.splitlines()
    assert [line for line in lines if "forged" in line]
    assert not [line for line in lines if line.startswith("2026") or "\x1b" in line]
