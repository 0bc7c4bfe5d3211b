"""The operator's word that a bookie takes no plain adds: kept, shown, taken back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from bookie_harness import RawClient, ask_http, cluster, options_in, real_bookie, v2_adds

from doubles.waiting import until
from quorumbook.bookie.options import HttpOptions
from quorumbook.bookie.read_only import OperatorsWord
from quorumbook.env import Env
from quorumbook.errors import StorageError
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.directories.places import current

PAGE = "/api/v1/bookie/state/readonly"


async def ask(bookie, method: str, query: str = "") -> tuple[int, dict]:
    status, text = await ask_http(bookie.http_port, f"{method} {PAGE}{query} HTTP/1.1\r\n\r\n")
    return status, json.loads(text)


async def test_s81_an_operators_read_only_outlives_restarts_until_it_is_taken_back(
    tmp_path: Path,
) -> None:
    options: dict[str, object] = {"bookie_id": "one", "http": HttpOptions()}
    async with cluster() as store:
        registered = BookieRegistration(store).bookies
        async with real_bookie(tmp_path, store, **options) as bookie:
            assert await ask(bookie, "GET") == (
                200, {"read_only": False, "reasons": [], "since_ms": None},
            )  # fmt: skip
            status, state = await ask(bookie, "PUT", "?read_only=true&reason=new%20disks")
            assert status == 200
            assert state["read_only"] is True
            assert state["reasons"] == ["operator: new disks"]
            await until(lambda: bookie.metrics.server_status == 0)
            assert await registered() == (frozenset(), {"one"})
            client = await RawClient.connect(bookie.address[1])
            client.send(v2_adds(1, range(1)))
            assert (await client.add_codes(1))[0][1] != 0
        async with real_bookie(tmp_path, store, **options) as bookie:
            assert await registered() == (frozenset(), {"one"})
            assert (await ask(bookie, "GET"))[1]["reasons"] == ["operator: new disks"]
            bookie.disks.storage_has_space()
            assert bookie.is_read_only
            assert not (await ask(bookie, "PUT", "?read_only=false"))[1]["read_only"]
            await until(lambda: bookie.metrics.server_status == 1)
        async with real_bookie(tmp_path, store, **options) as bookie:
            assert not bookie.is_read_only


async def test_s81_an_operators_writable_does_not_overrule_a_full_disk(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        await ask(bookie, "PUT", "?read_only=true")
        bookie.disks._is_above = True  # as if a disk had been full
        bookie.disks.storage_full(StorageError("no space left"))
        state = (await ask(bookie, "PUT", "?read_only=false"))[1]
        assert state["read_only"] is True


async def test_who_takes_back_his_own_word_leaves_another_one_alone(tmp_path: Path) -> None:
    mine, first = "?read_only=true&reason=a%20drain&if_reason=a%20drain", "operator: a drain"
    back = "?read_only=false&if_reason=a%20drain"
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert (await ask(bookie, "PUT", back))[1]["reasons"] == []
        assert (await ask(bookie, "PUT", mine))[1]["reasons"] == [first]
        assert (await ask(bookie, "PUT", back))[1]["reasons"] == []
        await ask(bookie, "PUT", mine)
        await ask(bookie, "PUT", "?read_only=true&reason=bad%20disk")
        for late in (mine, back):
            status, state = await ask(bookie, "PUT", late)
            assert (status, state["read_only"]) == (200, True)
            assert state["reasons"] == ["operator: bad disk"]
        assert not (await ask(bookie, "PUT", "?read_only=false"))[1]["read_only"]


async def test_s83_whatever_is_asked_of_the_switch_the_bookie_lives(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        for query in ("", "?read_only=perhaps", "?read_only="):
            assert (await ask(bookie, "PUT", query))[0] == 400
        for _ in range(3):
            for choice in ("true", "true", "false", "false"):
                status, state = await ask(bookie, "PUT", f"?read_only={choice}")
                assert (status, state["read_only"]) == (200, choice == "true")
        both = [ask(bookie, "PUT", f"?read_only={choice}") for choice in ("true", "false")]
        assert [status for status, _ in await asyncio.gather(*both)] == [200, 200]
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, range(1)))
        assert await client.add_codes(1) == [(0, 0)]


async def test_a_request_is_carried_out_once_when_its_body_is_there(tmp_path: Path) -> None:
    asked: list[str] = []
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        word = bookie.operators_word
        keep = word.set

        async def count(reason: str | None, **options: str | None) -> None:
            asked.append(str(reason))
            await keep(reason, **options)

        word.set = count  # type: ignore[method-assign]
        assert bookie.http_port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", bookie.http_port)
        head = f"PUT {PAGE}?read_only=true HTTP/1.1\r\nContent-Length: 18\r\n\r\n"
        writer.write(head.encode() + b'{"readOnly"')
        # Another request has its answer, so this one has been seen.
        other_reader, other = await asyncio.open_connection("127.0.0.1", bookie.http_port)
        other.write(b"GET /heartbeat HTTP/1.1\r\n\r\n")
        assert b"200 OK" in await other_reader.read()
        other.close()
        assert asked == []
        writer.write(b": true}")
        assert b"200 OK" in await reader.read()
        writer.close()
    assert len(asked) == 1


async def test_a_note_that_cannot_be_read_keeps_writers_away(tmp_path: Path) -> None:
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one"):
            pass
        (directory,) = options_in(tmp_path).ledger_directories
        (Path(current(directory)) / "READ_ONLY").write_bytes(b"\x00damaged")
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            assert bookie.is_read_only
            assert "cannot be read" in bookie.operators_word.state()["reasons"][0]


async def test_a_word_that_was_taken_back_is_gone_after_a_power_cut() -> None:
    disk = SimDisk()
    disk.make_directory("/l/current")
    disk.sync_directory("/l")
    word = OperatorsWord(Env(disk=disk), "/l", Mock())
    await word.set("new disks")
    fault = disk.faults.fail("sync_directory", "/l/current")
    with pytest.raises(StorageError):
        await word.set(None)
    assert fault.hits == 1
    await word.set(None)
    assert disk.crash().files() == []


async def test_the_peers_body_says_whether_a_bookie_is_read_only(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        for word in ("true", "false"):
            body = f'{{"readOnly": {word}}}'
            head = f"PUT {PAGE} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
            status, text = await ask_http(bookie.http_port, head + body)
            assert (status, json.loads(text)["read_only"]) == (200, word == "true")
