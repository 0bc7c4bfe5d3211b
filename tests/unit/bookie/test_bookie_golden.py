"""The peer's recorded conversations, replayed in order against our bookie.

Every answer must be the peer's own, except where the table says why it is not.  v2 answers are
compared byte by byte, v3 answers as decoded messages: which fields are there, and their values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bookie_harness import KEY, RawClient, cluster, real_bookie, v2_adds

from quorumbook.protocol import availability
from quorumbook.protocol.messages import message_class
from quorumbook.protocol.requests import Operation
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

GOLDEN = Path(__file__).parents[2] / "golden"
RESET = "connection reset by bookie"
#: Exchanges that the recorder began on a connection of their own.
FRESH_CONNECTION = (
    "v3: read of an unknown ledger",
    "mixed: first a v3 read",
    "garbage first frame",
)

Check = Callable[[Any, bytes], None]


def _our_disk(expected: Any, frame: bytes) -> None:
    """The sizes are this machine's; which fields are there is the peer's."""
    ours = decode(frame)
    for name in ("totalDiskCapacity", "freeDiskSpace"):
        nested = ours.getBookieInfoResponse
        assert nested.HasField(name) == expected.getBookieInfoResponse.HasField(name)
        assert not nested.HasField(name) or getattr(nested, name) > 0


def _explicit_lac_alone_is_an_answer(expected: Any, frame: bytes) -> None:
    """The peer says EIO with the packet set; OK is right for every client."""
    ours = v3.ResponseDecoder().feed(frame)[0]
    assert ours.status is Status.OK
    assert ours.lac_body == expected.readLacResponse.lacBody
    assert ours.last_entry is None


def _list_is_given(expected: Any, frame: bytes) -> None:
    """One of the peer's storages never answers; ours does."""
    ours = v3.ResponseDecoder().feed(frame)[0]
    assert ours.status is Status.OK
    assert availability.decode(ours.availability or b"") == [0, 1, 2, 3]


def _last_copy_wins(expected: Any, frame: bytes) -> None:
    """Of an entry added twice one of the peer's storages keeps the first copy, ours the last."""
    assert b"WORLD?" in frame


INTENDED: dict[str, dict[str, Check]] = {
    "db": {
        "v3: GET_BOOKIE_INFO requested=1": _our_disk,
        "v3: GET_BOOKIE_INFO requested=2": _our_disk,
        "v3: GET_BOOKIE_INFO requested=3": _our_disk,
        "v3: READ_LAC of a ledger with explicit LAC but no entry": _explicit_lac_alone_is_an_answer,
        "v3: GET_LIST_OF_ENTRIES_OF_LEDGER": _list_is_given,
    },
    "sorted": {
        "v3: GET_BOOKIE_INFO requested=1": _our_disk,
        "v3: GET_BOOKIE_INFO requested=2": _our_disk,
        "v3: GET_BOOKIE_INFO requested=3": _our_disk,
        "v3: READ_LAC of a ledger with explicit LAC but no entry": _explicit_lac_alone_is_an_answer,
        "v2: read entry 1 after overwrite": _last_copy_wins,
        "v2: batch read from 0, stops at the hole": _last_copy_wins,
    },
}


def decode(frame: bytes) -> Any:
    message = message_class("Response")()
    message.ParseFromString(frame[4:])
    return message


def is_v3(frame: bytes) -> bool:
    return frame[4] == 0x0A


async def replay(client: RawClient, exchange: dict[str, Any], intended: dict[str, Check]) -> None:
    name = exchange["name"]
    client.send(bytes.fromhex(exchange["request_frame_hex"]))
    if exchange["outcome"] == RESET:
        assert await client.is_closed(), name
        return
    ours = await client.frame()
    recorded = exchange["response_frame_hex"]
    theirs = bytes.fromhex(recorded) if recorded is not None else None
    expected = decode(theirs) if theirs is not None and is_v3(theirs) else None
    check = intended.get(name)
    if check is not None:
        check(expected, ours)
    elif expected is None:
        assert ours == theirs, name
    else:
        answer = decode(ours)
        # One field is the wall time at which a poll was woken.
        answer.readResponse.ClearField("lacUpdateTimestamp")
        expected.readResponse.ClearField("lacUpdateTimestamp")
        if not expected.HasField("readResponse"):
            answer.ClearField("readResponse")
        assert answer == expected, name


@pytest.mark.parametrize("storage", ["db", "sorted"])
async def test_the_peers_probe_of_a_bookie_gets_the_peers_answers(
    storage: str, tmp_path: Path
) -> None:
    exchanges = json.loads((GOLDEN / f"live_probe_{storage}.json").read_text())["exchanges"]
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        client = await RawClient.connect(bookie.address[1])
        for exchange in exchanges:
            if exchange["name"] in FRESH_CONNECTION:
                client = await RawClient.connect(bookie.address[1])
            await replay(client, exchange, INTENDED[storage])
            if exchange["outcome"] == RESET:
                client = await RawClient.connect(bookie.address[1])
        assert bookie.metrics.connections_broken_protocol > 0
        assert bookie.is_ready


async def test_every_intended_difference_is_still_one() -> None:
    for storage, checks in INTENDED.items():
        exchanges = json.loads((GOLDEN / f"live_probe_{storage}.json").read_text())["exchanges"]
        assert set(checks) <= {exchange["name"] for exchange in exchanges}


@pytest.mark.parametrize("storage", ["db", "sorted"])
async def test_s07_s36_a_restart_keeps_fences_lacs_and_entries_as_recorded(
    storage: str, tmp_path: Path
) -> None:
    probe = json.loads((GOLDEN / f"live_probe_{storage}.json").read_text())["exchanges"]
    crash = json.loads((GOLDEN / f"live_crash_replay_{storage}.json").read_text())["exchanges"]
    before = [exchange for exchange in probe if exchange["outcome"] == "response"]

    def better_fence(expected: Any, frame: bytes) -> None:
        # The peer forgets the fence of a ledger that was never written; 104 is "fenced".
        assert frame[8:12] == (104).to_bytes(4, "big")

    def better_lac(expected: Any, frame: bytes) -> None:
        # The peer forgets an explicit LAC without any entry.
        ours = v3.ResponseDecoder().feed(frame)[0]
        assert ours.status is Status.OK
        assert ours.lac_body is not None

    intended: dict[str, Check] = {
        "ledger 2051 (fenced while unknown, never written): plain add of entry 0": better_fence,
        "ledger 2005: READ_LAC after replay (explicit LAC journaled without any ledger key "
        "record)": better_lac,
    }
    async with cluster() as store:
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            v3_client = await RawClient.connect(bookie.address[1])
            for exchange in before:
                frame = bytes.fromhex(exchange["request_frame_hex"])
                await (v3_client if is_v3(frame) else client).ask(frame)
            for frame in _ledgers_2050_and_2051():
                await client.ask(frame)
        async with real_bookie(tmp_path, store, bookie_id="one") as bookie:
            client = await RawClient.connect(bookie.address[1])
            v3_client = await RawClient.connect(bookie.address[1])
            for exchange in crash:
                frame = bytes.fromhex(exchange["request_frame_hex"])
                await replay(v3_client if is_v3(frame) else client, exchange, intended)


def _ledgers_2050_and_2051() -> list[bytes]:
    return [
        v2_adds(2050, [0], b"hello"),
        v2.encode_read(2050, -1, master_key=KEY),
        v2.encode_read(2051, -1, master_key=KEY),
    ]


async def test_a_bookie_without_authentication_answers_auth_as_the_peer_does(
    tmp_path: Path,
) -> None:
    exchanges = json.loads((GOLDEN / "live_auth.json").read_text())["raw_exchanges"]
    (again,) = (e for e in exchanges if e["name"] == "v2: AUTH again after authentication")
    disabled = bytes.fromhex(again["response_frame_hex"])
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        for exchange in exchanges:
            frame = bytes.fromhex(exchange["request_frame_hex"])
            client = await RawClient.connect(bookie.address[1])
            if is_v3(frame):
                answer = await client.ask_v3(frame)
                # No connection has to authenticate, none is refused for trying.
                assert answer.status is not Status.UNAUTHORIZED
                if answer.operation == Operation.AUTH:
                    assert (answer.auth_plugin, answer.auth_payload) == ("AuthDisabledPlugin", b"")
            elif frame[5] == v2.AUTH:
                assert await client.ask(frame) == disabled
            else:
                assert v2.ANSWER.unpack_from(await client.ask(frame))[2] != 102
