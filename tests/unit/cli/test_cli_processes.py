"""What each of several bookies of a machine is told, and which directories are refused."""

from __future__ import annotations

import asyncio
import os
import socket
from types import SimpleNamespace

import pytest

from quorumbook.cli.bookie.processes import refuse_other_layout, settings_of
from quorumbook.cli.cluster import supervisor
from quorumbook.config.load import load
from quorumbook.errors import ConfigError


def configured(tmp_path, *overrides: str):
    directories = [
        f"storage.journal_directories={tmp_path}/j1,{tmp_path}/j2",
        f"storage.ledger_directories={tmp_path}/l",
    ]
    return load(environment={}, overrides=[*directories, *overrides])


def test_each_has_ports_directories_and_a_share_of_its_own(tmp_path) -> None:
    settings = configured(
        tmp_path, "http.enabled=true", "http.port=8080", "bookie.advertised_host=h7",
        "background.io_rate_bytes=9000000", "recovery.in_bookie=true",
    )  # fmt: skip
    told = [settings_of(settings, number, 3) for number in (1, 2, 3)]
    assert [each.integer("bookie.port") for each in told] == [3181, 3182, 3183]
    assert [each.integer("http.port") for each in told] == [8080, 8081, 8082]
    assert told[1].texts("storage.journal_directories") == (f"{tmp_path}/j1/2", f"{tmp_path}/j2/2")
    assert told[2].texts("storage.ledger_directories") == (f"{tmp_path}/l/3",)
    assert {each.text("bookie.machine") for each in told} == {"h7"}
    assert {each.text("bookie.bookie_id") for each in told} == {""}
    assert {each.integer("background.io_rate_bytes") for each in told} == {3000000}
    assert [each["recovery.in_bookie"].value for each in told] == [True, False, False]


def test_names_get_a_number_and_free_ports_stay_free(tmp_path) -> None:
    settings = configured(tmp_path, "bookie.bookie_id=blue", "bookie.port=0", "http.port=0")
    told = [settings_of(settings, number, 2) for number in (1, 2)]
    assert [each.text("bookie.bookie_id") for each in told] == ["blue-1", "blue-2"]
    assert {each.integer("bookie.port") for each in told} == {0}
    assert {each.integer("http.port") for each in told} == {0}


@pytest.mark.parametrize(
    ("overrides", "machine"),
    [
        (["bookie.machine=rack3-u12", "bookie.advertised_host=h7"], "rack3-u12"),
        (["bookie.host=10.0.0.7"], "10.0.0.7"),
        (["bookie.host=0.0.0.0", "bookie.advertised_host=h7"], "h7"),
        (["bookie.host=0.0.0.0", "bookie.bookie_id=blue"], socket.gethostname()),
        ([], "127.0.0.1"),
    ],
)
def test_the_machine_is_what_is_advertised_unless_it_has_a_name(
    tmp_path, overrides, machine
) -> None:
    settings = settings_of(configured(tmp_path, *overrides), 2, 2)
    assert settings.text("bookie.machine") == machine


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["bookie.port=65534"], "3 ports from 65534 on go beyond 65535"),
        (["http.enabled=true", "http.port=3183"], "which meet"),
        (["storage.index_directories=/srv/index"], "adopted from Java"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(tmp_path, overrides, message) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(configured(tmp_path, *overrides), 1, 3)


def leave_a_bookie(directory) -> None:
    os.makedirs(directory / "current")
    (directory / "current" / "VERSION").write_text("5\n")


def test_directories_of_another_number_of_bookies_are_refused(tmp_path) -> None:
    settings = configured(tmp_path)
    for count in (1, 2):
        refuse_other_layout(settings, count)  # nothing is there yet
    leave_a_bookie(tmp_path / "l" / "1")
    leave_a_bookie(tmp_path / "l" / "2")
    (tmp_path / "l" / "7").mkdir()  # not a bookie's
    refuse_other_layout(settings, 2)
    refuse_other_layout(settings, 3)
    with pytest.raises(ConfigError, match="l holds 2 bookies; add --processes 2"):
        refuse_other_layout(settings, 1)
    leave_a_bookie(tmp_path / "l" / "3")
    with pytest.raises(ConfigError, match="l holds 3 bookies; add --processes 3"):
        refuse_other_layout(settings, 2)


def test_a_bookie_that_ran_alone_is_not_left_out(tmp_path) -> None:
    leave_a_bookie(tmp_path / "j2")
    refuse_other_layout(configured(tmp_path), 1)
    with pytest.raises(ConfigError, match="j2 holds one bookie that ran without --processes"):
        refuse_other_layout(configured(tmp_path), 2)


async def test_a_child_is_started_again_though_the_system_had_no_room_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.0)
    starts = 0
    is_there_again = asyncio.Event()

    async def start() -> None:
        nonlocal starts
        starts += 1
        if starts == 2:
            raise OSError("no room for a process")
        if starts == 3:
            is_there_again.set()

    async def wait() -> int:
        if is_there_again.is_set():
            await asyncio.Event().wait()
        return -9

    async def stop() -> None:
        pass

    told: list[str] = []
    call = SimpleNamespace(warn=lambda _, text: told.append(text), note=told.append)
    child = SimpleNamespace(name="bookie 1", start=start, wait=wait, stop=stop)
    running = supervisor.Supervisor([child], call)
    await running.start()
    again = asyncio.create_task(is_there_again.wait())
    # Or else it would be waited for without end.
    await asyncio.wait([again, *running._guards], return_when=asyncio.FIRST_COMPLETED)
    assert is_there_again.is_set()
    await running.stop()
    assert "no room for a process" in told[1]
