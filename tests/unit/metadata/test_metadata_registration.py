"""Which bookies are there, what they say about themselves, and sessions that end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from doubles.waiting import until
from quorumbook.errors import (
    ConnectFailedError,
    LocalProtocolError,
    MetadataFormatError,
    NodeExistsError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.metadata.bookies.registration import (
    BookieEndpoint,
    BookieRegistration,
    BookieServiceInfo,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "bookie_service_info.json").read_text())
ID = "192.0.2.1:3181"
INFO = BookieServiceInfo.of_bookie("192.0.2.1", 3181)


def info_of(vector):
    endpoints = tuple(
        BookieEndpoint(
            each["id"],
            each["port"],
            each["host"],
            each["protocol"],
            tuple(each["auth"]),
            tuple(each["extensions"]),
        )
        for each in vector["info"]["endpoints"]
    )
    return BookieServiceInfo(endpoints, vector["info"]["properties"])


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["payload_hex"][:12] or "empty")
def test_service_infos_are_the_peers(vector):
    data = bytes.fromhex(vector["payload_hex"])
    assert info_of(vector).encode() == data
    found = BookieServiceInfo.decode(ID, data)
    if data:
        assert found == info_of(vector)
    assert found.address(ID) in [(each.host, each.port) for each in found.endpoints]


def test_an_empty_service_info_is_taken_from_the_bookie_id():
    assert BookieServiceInfo.decode(ID, b"") == BookieServiceInfo(
        (BookieEndpoint(ID, 3181, "192.0.2.1", "bookie-rpc"),)
    )
    for bookie_id in ("custom_id", "host:port", "host:0", "host:65536", ":3181"):
        with pytest.raises(MetadataFormatError, match=bookie_id):
            BookieServiceInfo.decode(bookie_id, b"")


@pytest.mark.parametrize("data", [b"\xff", b"garbage", b"\x32\x02\x0a\x00"])
def test_damaged_service_info_is_a_typed_error(data):
    with pytest.raises(MetadataFormatError, match=ID):
        BookieServiceInfo.decode(ID, data)


def test_the_first_endpoint_that_speaks_to_clients_counts():
    info = BookieServiceInfo(
        (
            BookieEndpoint("httpserver", 8080, "web", "http"),
            BookieEndpoint("bookie", 1, "first", "bookie-rpc"),
            BookieEndpoint("bookie2", 2, "second", "bookie-rpc"),
        )
    )
    assert info.address(ID) == ("first", 1)
    with pytest.raises(MetadataFormatError, match="bookie-rpc"):
        BookieServiceInfo(info.endpoints[:1]).address(ID)


@pytest.fixture
async def registration(initialised):
    registration = BookieRegistration(initialised)
    yield registration
    await registration.close()


@pytest.fixture
async def observer(open_memory, initialised):
    registration = BookieRegistration(await open_memory(session_timeout_s=1e6))
    yield registration
    await registration.close()


async def test_a_registered_bookie_is_seen_and_resolved(registration, observer):
    assert await observer.bookies() == (frozenset(), frozenset())
    await registration.register(ID, INFO)
    assert registration.is_registered
    assert await observer.bookies() == ({ID}, frozenset())
    assert await observer.resolve(ID) == ("192.0.2.1", 3181)
    assert await observer.service_info(ID) == INFO


async def test_a_bookie_that_is_not_registered_cannot_be_resolved(observer):
    with pytest.raises(ConnectFailedError) as caught:
        await observer.resolve(ID)
    assert caught.value.bookie_id == ID
    assert await observer.service_info(ID) is None


async def test_a_bookie_goes_read_only_and_back(registration, observer):
    await registration.register(ID, INFO)
    await registration.set_read_only()
    await registration.set_read_only()
    assert await observer.bookies() == (frozenset(), {ID})
    assert await observer.resolve(ID) == ("192.0.2.1", 3181)
    await registration.set_writable()
    assert await observer.bookies() == ({ID}, frozenset())


async def test_a_bookie_may_start_read_only(registration, observer):
    await registration.register(ID, INFO, read_only=True)
    assert await observer.bookies() == (frozenset(), {ID})


async def test_a_bookie_that_changes_state_is_never_in_neither_place(registration, initialised):
    await registration.register(ID, INFO)
    seen = []
    changing = True

    async def look():
        while changing:
            seen.append(
                await initialised.exists(f"/ledgers/available/{ID}") is not None
                or await initialised.exists(f"/ledgers/available/readonly/{ID}") is not None
                # Between the two looks it may have come back.
                or await initialised.exists(f"/ledgers/available/{ID}") is not None
            )

    looking = asyncio.ensure_future(look())
    for _ in range(50):
        await registration.set_read_only()
        await registration.set_writable()
    changing = False
    await looking
    assert seen
    assert all(seen)


async def test_a_bookie_that_is_not_registered_has_no_state(registration):
    with pytest.raises(NoSuchNodeError):
        await registration.set_read_only()


async def test_an_unregistered_bookie_is_gone(registration, observer):
    await registration.register(ID, INFO)
    await registration.unregister()
    await registration.unregister()
    assert not registration.is_registered
    assert await observer.bookies() == (frozenset(), frozenset())


async def test_a_bad_bookie_id_is_refused(registration):
    for bookie_id in ("readonly", "a/b", ""):
        with pytest.raises(LocalProtocolError):
            await registration.register(bookie_id, INFO)


async def test_a_watch_rings_once_for_a_change_of_either_set(registration, observer, initialised):
    rung = []
    await observer.bookies(lambda: rung.append(1))
    await registration.register(ID, INFO)
    await observer.bookies()
    assert rung == [1]
    await registration.set_read_only()
    await observer.bookies()
    assert rung == [1]
    await observer.bookies(lambda: rung.append(2))
    await initialised.create("/ledgers/available/readonly/b2:1")
    await observer.bookies()
    assert rung == [1, 2]


async def test_watching_again_and_again_leaves_nothing_behind(initialised, observer):
    for number in range(20):
        await observer.bookies(lambda: None)
        # Only one of the two watched sets changes.
        await initialised.create(f"/ledgers/available/b{number}:1")
        await observer.bookies()
    waiting = observer._store._watches._by_path.values()  # the store beneath, whose session ends
    assert sum(map(len, waiting)) == 0


async def test_the_read_only_parent_is_made_when_it_is_missing(registration, initialised):
    await initialised.delete("/ledgers/available/readonly")
    assert await registration.bookies() == (frozenset(), frozenset())
    await registration.register(ID, INFO, read_only=True)
    assert await registration.bookies() == (frozenset(), {ID})


# Somebody else's node


async def test_a_node_another_session_left_is_waited_for(open_memory, registration):
    left = BookieRegistration(await open_memory(session_timeout_s=10))
    await left.register(ID, BookieServiceInfo.of_bookie("old", 1))
    registering = asyncio.ensure_future(registration.register(ID, INFO))
    await until(lambda: bool(registration._store._watches))  # the store beneath, whose session ends
    assert not registering.done()
    await left.close()
    await left._store.close()  # the store beneath, whose session ends
    await registering
    assert await registration.resolve(ID) == ("192.0.2.1", 3181)


async def test_a_second_living_process_of_the_same_id_is_refused(open_memory, initialised):
    first = BookieRegistration(await open_memory())
    await first.register(ID, INFO)
    second = BookieRegistration(await open_memory(session_timeout_s=0.05))
    with pytest.raises(NodeExistsError, match="another living process"):
        await second.register(ID, BookieServiceInfo.of_bookie("other", 1))
    assert not second.is_registered
    assert await second.resolve(ID) == ("192.0.2.1", 3181)
    for each in (first, second):
        await each.close()


async def test_a_bookie_that_holds_its_directories_takes_its_id_over(open_memory, registration):
    left = BookieRegistration(await open_memory())
    await left.register(ID, BookieServiceInfo.of_bookie("old", 1), read_only=True)
    await registration.register(ID, INFO, take_over=True)
    assert await registration.bookies() == ({ID}, frozenset())
    await left.close()
    await left._store.close()  # the store beneath, whose session ends
    assert await registration.resolve(ID) == ("192.0.2.1", 3181)


async def test_registering_again_replaces_what_the_bookie_said(registration, observer):
    await registration.register(ID, INFO)
    await registration.register(ID, BookieServiceInfo.of_bookie("moved", 2))
    assert await observer.resolve(ID) == ("moved", 2)


# Sessions


@pytest.mark.parametrize("read_only", [False, True])
async def test_r31_a_bookie_comes_back_under_its_id_when_its_session_ended(
    registration, observer, clock, read_only
):
    told = []
    await registration.register(ID, INFO)
    if read_only:
        await registration.set_read_only()
    registration.on_changed = told.append
    before = await observer.bookies()
    session_id = registration._store.session_id  # the store beneath, whose session ends
    clock.advance(20)
    assert await observer.bookies() == (frozenset(), frozenset())
    await until(lambda: registration.is_registered)
    assert told == [False, True]
    assert registration._store.session_id != session_id  # the store beneath, whose session ends
    assert await observer.bookies() == before
    assert await observer.resolve(ID) == ("192.0.2.1", 3181)


async def test_r31_coming_back_is_tried_until_it_succeeds(
    open_memory, registration, observer, clock
):
    await registration.register(ID, INFO)
    squatter = await open_memory(session_timeout_s=1e6)
    clock.advance(20)
    await squatter.replace(f"/ledgers/available/{ID}", b"", ephemeral=True)
    # The store beneath, whose session ends.
    registration._store.session_timeout_s = 0.01
    await until(lambda: registration._store.session_id > squatter.session_id)
    await asyncio.sleep(0.05)
    assert not registration.is_registered
    await squatter.close()
    await until(lambda: registration.is_registered)
    assert await observer.bookies() == ({ID}, frozenset())


async def test_r31_an_unregistered_bookie_does_not_come_back(registration, observer, clock):
    await registration.register(ID, INFO)
    await registration.unregister()
    clock.advance(20)
    await observer.bookies()
    await asyncio.sleep(0.02)
    assert await observer.bookies() == (frozenset(), frozenset())
    assert registration._restoring is None  # the store beneath, whose session ends


@pytest.mark.parametrize("registers", ["first", "again"])
async def test_r31_a_bookie_whose_session_ends_before_the_last_answer_comes_back(
    registration, observer, clock, monkeypatch, registers
):
    store = registration._store  # the store beneath, whose session ends
    delete = store.delete

    async def answer_late(path, *arguments):
        try:
            await delete(path, *arguments)
        finally:
            monkeypatch.undo()
            clock.advance(20)
            await observer.bookies()
            # Its end is heard of now, and what is heard is acted on.
            await asyncio.sleep(0)

    if registers == "first":
        monkeypatch.setattr(store, "delete", answer_late)
        await registration.register(ID, INFO)
        assert not registration.is_registered
    else:
        await registration.register(ID, INFO)
        monkeypatch.setattr(store, "delete", answer_late)
        clock.advance(20)
    await until(lambda: _is_there(registration, observer))


async def _is_there(registration, observer):
    there = await observer.bookies() == ({ID}, frozenset())
    return there and registration.is_registered


async def test_a_bookie_that_could_not_register_does_not_come_by_itself(
    registration, observer, clock, monkeypatch
):
    store = registration._store  # the store beneath, whose session ends
    create = store.create

    async def fail(*arguments, **options):
        clock.advance(20)
        await create(*arguments, **options)

    monkeypatch.setattr(store, "create", fail)
    with pytest.raises(SessionExpiredError):
        await registration.register(ID, INFO)
    monkeypatch.undo()
    # Nothing outside tells when there is nothing more to do.
    await until(lambda: registration._restoring is None or registration._restoring.done())
    assert not registration.is_registered
    assert await observer.bookies() == (frozenset(), frozenset())
