"""Authentication: the peer's exchanges byte by byte, the built-in plug-ins, and the gate."""

from __future__ import annotations

import asyncio
import json
import logging
import pathlib
import ssl
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from security_harness import (
    PATIENCE_S,
    SOLO,
    RawConnection,
    add_frames,
    add_v3,
    bookie_tls,
    client_tls,
    secure_cluster,
)

from doubles import gssapi_toy
from doubles.certificates import Authority, Issued
from doubles.waiting import until
from quorumbook.auth import plugins
from quorumbook.auth.certificate_role import roles_of
from quorumbook.auth.plugins import load_bookie_plugin, load_client_plugin
from quorumbook.bookie.connections.admission import Admission
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.bookie.options import BookieOptions
from quorumbook.client.context import client_context
from quorumbook.env import Env
from quorumbook.errors import ConfigError, SecurityError
from quorumbook.protocol.requests import Auth, BookieInfo, Read, StartTLS
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "live_auth.json"
TOYS: Any = {
    "served": {"auth_plugin": "security_toys:GoldenBookie"},
    "used": {"auth_plugin": "security_toys:GoldenClient"},
}
#: Exchanges of the golden file that began on a connection of their own.
ON_A_NEW_CONNECTION = {
    "v2: read before authentication",
    "v2: batch read before authentication",
    "v2: auth with a foreign plugin name",
    "v2: auth refused by the plugin",
    "v3: read before authentication",
    "v3: auth refused by the plugin",
}
#: The peer cuts the connection; here the client is told.
TOLD_HERE = {"v2: batch read before authentication"}


async def test_the_peers_exchanges_are_answered_byte_by_byte(tmp_path: Any) -> None:
    exchanges = json.loads(GOLDEN.read_text())["raw_exchanges"]
    assert len(exchanges) == 17
    async with secure_cluster(tmp_path, **TOYS["served"]) as cluster:
        raw = await cluster.raw()
        for exchange in exchanges:
            name = exchange["name"]
            if name in ON_A_NEW_CONNECTION:
                raw.close()
                raw = await cluster.raw()
            raw.send(bytes.fromhex(exchange["request_frame_hex"]))
            if name in TOLD_HERE:
                answer = v2.AnswerDecoder().feed(await raw.frame())[0]
                assert isinstance(answer, v2.BatchReadAnswer), name
                assert answer.code == 102, name
            elif exchange["response_frame_hex"] is None:
                assert await raw.is_closed(), name
            elif name == "v3: read after authentication":
                # Nothing was stored at this bookie; that it looked is what counts.
                assert v3.ResponseDecoder().feed(await raw.frame())[0].status in (
                    Status.OK,
                    Status.NO_ENTRY,
                )
            else:
                assert (await raw.frame()).hex() == exchange["response_frame_hex"], name
        raw.close()


async def test_a_plug_in_of_ones_own_lets_our_client_in_over_both_protocols(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    for served, used in (({}, {}), ({"tls": bookie_tls(ca, good)}, {"tls": client_tls(ca)})):
        async with secure_cluster(tmp_path, **TOYS["served"], **served) as cluster:
            async with cluster.connect(**TOYS["used"], **used) as bk:
                async with bk.create_ledger(**SOLO) as ledger:
                    assert await ledger.append(b"x") == 0  # v2
                async with bk.open_ledger(ledger.id) as reader:  # v3
                    assert [bytes(e.payload) async for e in reader.read()] == [b"x"]


async def test_a_bookies_plug_in_that_fails_lets_nobody_in_and_says_nothing(
    tmp_path: Any, caplog: Any
) -> None:
    async with secure_cluster(tmp_path, auth_plugin="security_toys:Broken") as cluster:
        async with cluster.connect(**TOYS["used"]) as bk:
            with pytest.raises(SecurityError, match="closed the connection before it let us in"):
                await bk.create_ledger(**SOLO)
            control = client_context(bk).bookies.control(cluster.bookie.bookie_id)
            with pytest.raises(SecurityError, match="did not accept our authentication"):
                await control.connected()
    assert "the plug-in failed with KeyError" in caplog.text
    assert "hello" not in caplog.text


async def test_a_client_without_a_plug_in_gets_nothing_of_a_bookie_that_wants_one(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    served = {**TOYS["served"], "tls": bookie_tls(ca, good)}
    async with secure_cluster(tmp_path, **served) as cluster:
        async with cluster.connect(tls=client_tls(ca)) as bk:
            with pytest.raises(SecurityError, match="does not let us in; it may want auth"):
                await bk.create_ledger(**SOLO)
        assert cluster.bookie.metrics.add.succeeded.count == 0


# Plug-ins and files that cannot be used ----------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "kerberos",
            "'kerberos' is not an installed plug-in; give module:Class, or one of shared-secret",
        ),
        ("nowhere.module:Class", "cannot be found: No module named 'nowhere'"),
        ("security_toys:Missing", "cannot be found"),
        ("security_toys:Nameless", "it has no name for its messages"),
        ("shared-secret", "auth_settings must name the file"),
    ],
)
def test_a_plug_in_that_is_none_is_said_so(name: str, why: str) -> None:
    for load in (load_bookie_plugin, load_client_plugin):
        with pytest.raises(ConfigError, match=why):
            load(name, "")
    with pytest.raises(ConfigError, match=r"needs nothing of the client but its certificate"):
        load_client_plugin("certificate-role", "")


# The role in a certificate ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "roles"),
    [
        ("0:writer", ["writer"]),
        ("0:writer,reader;1:main", ["writer", "reader"]),
        ("1:main;0: writer ", ["writer"]),
        ("0:first;0:last", ["last"]),
        ("0:,writer", ["", "writer"]),
        ("0:writer\nmore", []),
        ("0:\u00a0writer", ["\u00a0writer"]),
        (" 0:writer", []),
        ("writer", []),
        ("1:writer", []),
        ("", []),
        (None, []),
    ],
)
def test_roles_stand_in_the_first_organizational_unit(unit: str | None, roles: list[str]) -> None:
    subject: tuple[Any, ...] = ((("commonName", "x"),),)
    if unit is not None:
        subject += ((("organizationalUnitName", unit),), (("organizationalUnitName", "0:no"),))
    assert roles_of({"subject": subject}) == roles


@pytest.mark.parametrize(
    "plugin", ["certificate-role", "org.apache.bookkeeper.tls.BookieAuthZFactory"]
)
async def test_a_certificates_role_lets_in_who_has_one_that_is_listed(
    ca: Authority, good: Issued, tmp_path: Any, plugin: str, caplog: Any
) -> None:
    served: Any = {
        "tls": bookie_tls(ca, good, client_authentication=True),
        "auth_plugin": plugin,
        "authorized_roles": ("writer", "admin"),
    }
    async with secure_cluster(tmp_path, **served) as cluster:
        for unit, is_in in (
            ("0:writer", True),
            ("0:admin,nothing", True),
            ("0:nothing,admin", False),  # the first one counts
            ("0:reader", False),
            ("writer", False),
            (None, False),
        ):
            used = {"tls": client_tls(ca, ca.issue("client", unit=unit)), "quarantine_s": 0}
            async with cluster.connect(**used) as bk:
                if is_in:
                    async with bk.create_ledger(**SOLO) as ledger:
                        assert await ledger.append(b"x") == 0, unit
                else:
                    with pytest.raises(SecurityError, match="another role in our certificate"):
                        await bk.create_ledger(**SOLO)
        assert "bookie.authorized_roles names only admin, writer" in caplog.text
        assert "its certificate has no role" in caplog.text
        raw = await cluster.raw()
        assert (await raw.ask_v3(v3.encode_bookie_info(1, 0))).status is Status.UNAUTHORIZED
        raw.close()


def test_a_unit_that_is_part_of_a_longer_name_counts_where_the_peer_sees_it() -> None:
    unit, other = ("organizationalUnitName", "0:writer"), ("organizationalUnitName", "0:admin")
    assert roles_of({"subject": ((("stateOrProvinceName", "s"), unit),)}) == ["writer"]
    assert roles_of({"subject": ((("commonName", "c"), unit), (other,))}) == ["admin"]
    assert roles_of({"subject": ((unit, other),)}) == ["admin"]


@pytest.mark.parametrize(
    "plugin", ["certificate-role", "org.apache.bookkeeper.tls.BookieAuthZFactory"]
)
def test_certificates_roles_without_a_list_of_those_that_may_come_in_are_refused(
    plugin: str,
) -> None:
    options = BookieOptions(
        journal_directories=("j",), ledger_directories=("l",), auth_plugin=plugin
    )
    with pytest.raises(ConfigError, match=r"may come in with bookie\.authorized_roles"):
        Admission(Env(), options, BookieMetrics())


def test_roles_without_a_plug_in_that_tells_them_are_a_contradiction(tmp_path: Any) -> None:
    options = BookieOptions(
        journal_directories=("j",), ledger_directories=("l",), authorized_roles=("writer",)
    )
    with pytest.raises(ConfigError, match=r"authorized_roles needs a bookie\.auth_plugin"):
        Admission(Env(), options, BookieMetrics())


# The gate ---------------------------------------------------------------------------------------


def _by(way: str, ca: Authority, good: Issued, tmp_path: Any) -> tuple[Any, Any]:
    """Return a bookie's options for a way to authenticate, and those of a client by its name."""
    if way == "certificate-role":
        served = {"tls": bookie_tls(ca, good, client_authentication=True)}
        roles = {"authorized_roles": ("one", "two")}
        return served | roles | {"auth_plugin": way}, lambda name: {
            "tls": client_tls(ca, ca.issue(name, unit=f"0:{name}"))
        }
    if way == "sasl-kerberos":
        return {"auth_plugin": way, "auth_settings": "allowed=one|two"}, lambda name: {
            "auth_plugin": way, "auth_settings": f"principal={name}"
        }  # fmt: skip

    def secrets(file: str, *names: str) -> dict[str, str]:
        path = tmp_path / file
        path.write_text("".join(f"{name}:{name * 8}\n" for name in names))
        path.chmod(0o600)
        return {"auth_plugin": way, "auth_settings": str(path)}

    return secrets("known", "one", "two"), lambda name: secrets(name, name)


def _ways() -> list[str]:
    return ["shared-secret", "sasl-digest-md5", "sasl-kerberos", "certificate-role"]


def test_every_way_to_authenticate_that_ships_is_tried_here() -> None:
    # The one list of them.
    assert {name for name in plugins._BUILT_IN if "." not in name} == {*_ways()}


@pytest.mark.parametrize("way", _ways())
async def test_the_log_names_who_begins_and_who_fences_a_ledger(
    ca: Authority, good: Issued, tmp_path: Any, caplog: Any, monkeypatch: Any, way: str
) -> None:
    # As commands log unless they are told to say more.
    caplog.set_level(logging.INFO)
    monkeypatch.setitem(sys.modules, "gssapi", gssapi_toy)
    served, used = _by(way, ca, good, tmp_path)
    async with (
        secure_cluster(tmp_path, **served) as cluster,
        cluster.connect(**used("one")) as writing,
        cluster.connect(**used("two")) as recovering,
    ):
        ledger = await writing.create_ledger(**SOLO)
        await ledger.append(b"x")
        async with recovering.open_ledger(ledger.id):
            pass
    assert "the connection of 127.0.0.1:" in caplog.text
    assert " is one's" in caplog.text
    assert f"ledger {ledger.id} is begun by one at 127.0.0.1:" in caplog.text
    assert f"ledger {ledger.id} is fenced by two at 127.0.0.1:" in caplog.text


async def test_before_authentication_frames_are_small(tmp_path: Any) -> None:
    async with secure_cluster(tmp_path, **TOYS["served"]) as cluster:
        raw = await cluster.raw()
        assert await raw.ask_v2(add_frames(1, 1, b"x" * 60_000)) == v2.AddAnswers(1, 0, 0, 102)
        raw.send((64 * 1024).to_bytes(4, "big"))  # no more is needed to see that it is too much
        assert await raw.is_closed()
        raw = await cluster.raw()
        await raw.ask_v2(v2.encode_auth("GoldenAuth", b"hello"))
        await raw.ask_v2(v2.encode_auth("GoldenAuth", b"response"))
        assert await raw.ask_v2(add_frames(1, 1, b"x" * 1_000_000)) == v2.AddAnswers(1, 0, 0, 0)
        raw.close()


async def test_who_does_not_authenticate_is_cut_after_a_time_and_who_did_is_not(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    served = {**TOYS["served"], "tls": bookie_tls(ca, good), "login_timeout_s": 0.2}
    async with secure_cluster(tmp_path, **served) as cluster:
        good_one = await cluster.raw()
        await good_one.ask_v2(v2.encode_auth("GoldenAuth", b"hello"))
        await good_one.ask_v2(v2.encode_auth("GoldenAuth", b"response"))
        silent, shaking = await cluster.raw(), await cluster.raw()
        # This one switches to TLS and never says a word of it.
        assert (await shaking.ask_v3(v3.encode_start_tls(1))).status is Status.OK
        assert await silent.is_closed()
        assert await shaking.is_closed()
        assert await good_one.ask_v2(add_frames(1, 1)) == v2.AddAnswers(1, 0, 0, 0)
        good_one.close()


async def test_bytes_behind_a_start_tls_end_the_connection(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        for behind in (add_v3(2, 7), add_frames(7, 1), b"\0", v3.encode_start_tls(2)):
            raw = await cluster.raw()
            raw.send(v3.encode_start_tls(1) + behind)
            assert await raw.is_closed()
        assert cluster.bookie.storage.handle(7) is None


async def test_tls_does_not_begin_behind_other_requests_nor_twice(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        raw = await cluster.raw()
        assert (await raw.ask_v3(v3.encode_bookie_info(1, 0))).status is Status.OK
        assert (await raw.ask_v3(v3.encode_start_tls(2))).status is Status.BAD_REQUEST
        assert (await raw.ask_v3(v3.encode_bookie_info(3, 0))).status is Status.OK
        raw.close()
        raw = await cluster.raw()
        await raw.start_tls(ssl.create_default_context(cafile=ca.ca_file))
        assert (await raw.ask_v3(v3.encode_start_tls(2))).status is Status.BAD_REQUEST
        assert (await raw.ask_v3(v3.encode_bookie_info(3, 0))).status is Status.OK
        raw.close()


async def test_what_was_proven_in_the_clear_counts_nothing_under_tls(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    async with secure_cluster(tmp_path, **TOYS["served"], tls=bookie_tls(ca, good)) as cluster:
        raw = await cluster.raw()
        await raw.ask_v3(v3.encode_auth(1, "GoldenAuth", b"hello"))
        await raw.ask_v3(v3.encode_auth(2, "GoldenAuth", b"response"))
        await raw.start_tls(ssl.create_default_context(cafile=ca.ca_file))
        assert (await raw.ask_v3(v3.encode_bookie_info(3, 0))).status is Status.UNAUTHORIZED
        await raw.ask_v3(v3.encode_auth(4, "GoldenAuth", b"hello"))
        await raw.ask_v3(v3.encode_auth(5, "GoldenAuth", b"response"))
        assert (await raw.ask_v3(v3.encode_bookie_info(6, 0))).status is Status.OK
        raw.close()


class _Connection:
    """A connection that only keeps what its gate does."""

    address = peer = "somebody"
    certificate = None

    def __init__(self) -> None:
        self.gate: Any = None
        self.answers: list[bytes] = []
        self.is_closing = False
        self.limit = 0

    def is_known_as(self, name: str) -> None:
        pass

    def answer(self, data: bytes) -> None:
        self.answers.append(data)

    def close(self) -> None:
        self.is_closing = True

    def limit_frames(self, size_bytes: int) -> None:
        self.limit = size_bytes


_REQUESTS: dict[str, Any] = {
    "hello": lambda: Auth(3, 1, "GoldenAuth", b"hello"),
    "response": lambda: Auth(2, 2, "GoldenAuth", b"response"),
    "wrong": lambda: Auth(3, 1, "GoldenAuth", b"wrong"),
    "foreign": lambda: Auth(3, 1, "Other", b"hello"),
    "foreign v2": lambda: Auth(2, 2, "Other", b"hello"),
    "read": lambda: Read(2, 2, 1, 1),
    "info": lambda: BookieInfo(1, 0),
    "tls": lambda: StartTLS(1),
}


@given(st.lists(st.sampled_from(sorted(_REQUESTS)), max_size=12))
def test_whatever_is_said_nothing_passes_a_gate_before_the_plug_in_is_content(
    said: list[str],
) -> None:
    options = BookieOptions(journal_directories=("j",), ledger_directories=("l",), **TOYS["served"])
    admission = Admission(Env(), options, BookieMetrics())
    connection: Any = _Connection()
    gate = connection.gate = admission.gate(connection)
    is_in = is_over = False
    for word in said:
        passed = gate.admit([_REQUESTS[word]()], 0)
        expected = is_in and not is_over
        assert bool(passed) == expected, (said, word)
        if expected:
            assert connection.gate is None
            break
        is_over = is_over or (not is_in and word in ("wrong", "foreign v2"))
        is_in = is_in or (word == "response" and not is_over)
        assert connection.is_closing == is_over
        assert (connection.limit > 64 * 1024) == is_in


async def test_many_at_the_door_do_not_stop_who_is_inside(tmp_path: Any) -> None:
    async with secure_cluster(tmp_path, **TOYS["served"]) as cluster:
        crowd = [await cluster.raw() for _ in range(50)]
        for raw in crowd:
            raw.send(add_frames(9, 50))
        async with cluster.connect(**TOYS["used"]) as bk, asyncio.timeout(PATIENCE_S):
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0
        await until(lambda: cluster.bookie.metrics.requests_refused >= 50)
        for raw in crowd:
            assert isinstance(raw, RawConnection)
            raw.close()
        assert cluster.bookie.storage.handle(9) is None
