"""Certificates wrong in twelve ways, each refused with a typed error that says why and what to do.

The bookie shows a wrong one to the client, or the client to the bookie; in every case nothing of
the client's was carried out, and the way round with a good one works in the same cluster.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from security_harness import (
    PATIENCE_S,
    SOLO,
    bookie_tls,
    client_tls,
    secure_cluster,
)

from doubles.certificates import CLIENT, SERVER, Authority, Issued
from quorumbook.env import TlsOptions
from quorumbook.errors import ConfigError, SecurityError

LOOPBACK: Any = {"ips": ["127.0.0.1"]}

#: What is wrong, how it is issued, whether the bookie is known by name, and what the error says.
WRONG_FOR_A_BOOKIE: list[tuple[str, Callable[[Authority], Issued], bool, str]] = [
    (
        "wrong DNS name",
        lambda ca: ca.issue("bad", dns=["elsewhere.example"]),
        True,
        "of localhost is not made for this host name; issue one that names it as DNS",
    ),
    (
        "common name only",
        lambda ca: ca.issue("bad", common_name="localhost"),
        True,
        "not made for this host name",
    ),
    (
        "wrong IP",
        lambda ca: ca.issue("bad", ips=["127.0.0.2"]),
        False,
        "of 127.0.0.1 is not made for this address; issue one that names it as IP",
    ),
    (
        "wildcard over two labels",
        lambda ca: ca.issue("bad", dns=["*.localhost", "*.*"]),
        True,
        "not made for this host name",
    ),
    (
        "expired",
        lambda ca: ca.issue("bad", from_days=-9, to_days=-1, **LOOPBACK),
        False,
        "has expired; renew it",
    ),
    (
        "not valid yet",
        lambda ca: ca.issue("bad", from_days=1, to_days=9, **LOOPBACK),
        False,
        "is not valid yet; look at the clocks",
    ),
    (
        "self-signed",
        lambda ca: ca.issue("bad", self_signed=True, **LOOPBACK),
        False,
        "is self-signed; have it signed by a CA",
    ),
    (
        "another CA",
        lambda ca: Authority(ca.directory, "Another CA").issue("bad", **LOOPBACK),
        False,
        "has an unknown issuer; .* its CA in tls.ca_file",
    ),
    (
        "made for clients",
        lambda ca: ca.issue("bad", usages=[CLIENT], **LOOPBACK),
        False,
        "not made for this side of a connection; its extended key usage must be serverAuth",
    ),
    (
        "no intermediate",
        lambda ca: ca.below("Below").issue("bad", with_chain=False, **LOOPBACK),
        False,
        "has an unknown issuer; .* all intermediate certificates in tls.certificate_file",
    ),
]


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("make", "by_name", "why"),
    [case[1:] for case in WRONG_FOR_A_BOOKIE],
    ids=[case[0] for case in WRONG_FOR_A_BOOKIE],
)
async def test_a_bookie_with_a_wrong_certificate_is_refused(
    ca: Authority,
    tmp_path: Any,
    version: str,
    make: Callable[[Authority], Issued],
    by_name: bool,
    why: str,
) -> None:
    bad = make(ca)
    host = "localhost" if by_name else "127.0.0.1"
    async with secure_cluster(tmp_path, host=host, tls=bookie_tls(ca, bad)) as cluster:
        tls = client_tls(ca, protocols=(version,))
        async with cluster.connect(tls=tls) as bk, asyncio.timeout(PATIENCE_S):
            with pytest.raises(SecurityError, match=why) as caught:
                await bk.create_ledger(**SOLO)
        assert "\n" not in str(caught.value)
        assert caught.value.code == -24
        assert cluster.bookie.metrics.operations["bookie_info"].succeeded.count == 0


async def test_a_revoked_certificate_is_refused_and_others_of_its_issuer_are_not(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    bad = ca.issue("bad", **LOOPBACK)
    tls = client_tls(ca, crl_file=ca.revoke(bad))
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, bad)) as cluster:
        async with cluster.connect(tls=tls) as bk:
            with pytest.raises(SecurityError, match="was revoked; issue a new one"):
                await bk.create_ledger(**SOLO)
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        async with cluster.connect(tls=tls) as bk:
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0


@pytest.mark.parametrize("is_revoked", [True, False])
async def test_what_a_revoked_intermediate_has_signed_is_refused(
    ca: Authority, tmp_path: Any, is_revoked: bool
) -> None:
    below = ca.below("Below")
    leaf = below.issue("leaf", **LOOPBACK)
    lists = tmp_path / "all.crl"
    first = pathlib.Path(ca.revoke(*[below.itself()] * is_revoked)).read_text()
    lists.write_text(first + pathlib.Path(below.revoke()).read_text())
    async with (
        secure_cluster(tmp_path, tls=bookie_tls(ca, leaf)) as cluster,
        cluster.connect(tls=client_tls(ca, crl_file=str(lists))) as bk,
    ):
        if is_revoked:
            with pytest.raises(SecurityError, match="was revoked; issue a new one"):
                await bk.create_ledger(**SOLO)
        else:
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0


async def test_a_key_that_everybody_can_read_stops_a_bookie_and_a_client_at_once(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    issued = ca.issue("open", **LOOPBACK)
    os.chmod(issued.key_file, 0o644)
    with pytest.raises(ConfigError, match=r"tls.key_file .*open\.key"):
        async with secure_cluster(tmp_path, tls=bookie_tls(ca, issued)):
            pass
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        with pytest.raises(ConfigError, match=r"tls.key_file .*open\.key"):
            cluster.connect(tls=client_tls(ca, issued))


async def test_a_key_of_another_certificate_stops_a_bookie_and_a_client_at_once(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    other = ca.issue("other", **LOOPBACK)
    mixed = Issued(good.certificate_file, other.key_file, good.certificate)
    why = "tls.key_file .*other.key is not the key of the first certificate in .*good.pem"
    with pytest.raises(ConfigError, match=why):
        async with secure_cluster(tmp_path, tls=bookie_tls(ca, mixed)):
            pass
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        with pytest.raises(ConfigError, match=why):
            cluster.connect(tls=client_tls(ca, mixed))


WRONG_FOR_A_CLIENT: list[tuple[str, Callable[[Authority], Issued], str]] = [
    ("expired", lambda ca: ca.issue("bad", from_days=-9, to_days=-1), "has expired; renew it"),
    (
        "not valid yet",
        lambda ca: ca.issue("bad", from_days=1, to_days=9),
        "does not accept our certificate",
    ),
    ("self-signed", lambda ca: ca.issue("bad", self_signed=True), "who signed our certificate"),
    (
        "another CA",
        lambda ca: Authority(ca.directory, "Another CA").issue("bad"),
        "who signed our certificate",
    ),
    (
        "made for bookies",
        lambda ca: ca.issue("bad", usages=[SERVER]),
        "does not accept our certificate",
    ),
    (
        "no intermediate",
        lambda ca: ca.below("Below").issue("bad", with_chain=False),
        "who signed our certificate",
    ),
]


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize(
    ("make", "why"),
    [case[1:] for case in WRONG_FOR_A_CLIENT],
    ids=[case[0] for case in WRONG_FOR_A_CLIENT],
)
async def test_a_client_with_a_wrong_certificate_is_refused(
    ca: Authority,
    good: Issued,
    tmp_path: Any,
    version: str,
    make: Callable[[Authority], Issued],
    why: str,
) -> None:
    tls = bookie_tls(ca, good, client_authentication=True)
    async with secure_cluster(tmp_path, tls=tls) as cluster:
        shown = client_tls(ca, make(ca), protocols=(version,))
        async with cluster.connect(tls=shown) as bk, asyncio.timeout(PATIENCE_S):
            with pytest.raises(SecurityError, match=why):
                await bk.create_ledger(**SOLO)
        assert cluster.bookie.metrics.connections_unauthorized >= 1
        async with cluster.connect(tls=client_tls(ca, good)) as bk:
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0


async def test_a_revoked_client_is_refused_by_the_bookie(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    bad = ca.issue("bad")
    tls = bookie_tls(ca, good, client_authentication=True, crl_file=ca.revoke(bad))
    async with secure_cluster(tmp_path, tls=tls) as cluster:
        async with cluster.connect(tls=client_tls(ca, bad)) as bk:
            with pytest.raises(SecurityError, match="our certificate was revoked"):
                await bk.create_ledger(**SOLO)


async def test_a_chain_with_an_intermediate_and_a_name_works(ca: Authority, tmp_path: Any) -> None:
    issued = ca.below("Below").issue("long", dns=["*.example", "localhost"])
    async with secure_cluster(tmp_path, host="localhost", tls=bookie_tls(ca, issued)) as cluster:
        async with cluster.connect(tls=client_tls(ca)) as bk:
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0


async def test_the_host_name_check_can_be_turned_off_and_the_issuer_still_counts(
    ca: Authority, tmp_path: Any
) -> None:
    elsewhere = ca.issue("elsewhere", dns=["elsewhere.example"])
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, elsewhere)) as cluster:
        async with cluster.connect(tls=client_tls(ca, verify_host=False)) as bk:
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"x") == 0
        stranger = Authority(ca.directory, "Another CA")
        async with cluster.connect(tls=client_tls(stranger, verify_host=False)) as bk:
            with pytest.raises(SecurityError, match="unknown issuer"):
                await bk.create_ledger(**SOLO)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"certificate_file": ""}, "tls.certificate_file and tls.key_file must both be set"),
        ({"certificate_file": "/nowhere.pem"}, "tls.certificate_file /nowhere.pem cannot be read"),
        ({"ca_file": "/nowhere.pem"}, "tls.ca_file /nowhere.pem cannot be read"),
        ({"ca_file": ""}, "tls.ca_file must be set with tls.client_authentication"),
        ({"protocols": ("TLSv1.1",)}, "tls.protocols: TLSv1.1 is not TLSv1.2, TLSv1.3 or both"),
        ({"key_password_file": "/nowhere"}, "tls.key_password_file /nowhere cannot be read"),
    ],
)
async def test_files_that_cannot_be_used_are_named(
    ca: Authority, good: Issued, tmp_path: Any, changes: dict[str, Any], why: str
) -> None:
    tls = bookie_tls(ca, good, client_authentication=True, **changes)
    with pytest.raises(ConfigError, match=why):
        async with secure_cluster(tmp_path, tls=tls):
            pass


async def test_what_is_no_certificate_is_said_to_be_none(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate\n")
    broken = Issued(str(junk), good.key_file, good.certificate)
    with pytest.raises(ConfigError, match=r"not a certificate and a key .*openssl pkcs12"):
        async with secure_cluster(tmp_path, tls=bookie_tls(ca, broken)):
            pass
    with pytest.raises(ConfigError, match="has no certificate in PEM form"):
        async with secure_cluster(
            tmp_path, tls=bookie_tls(ca, good, client_authentication=True, ca_file=str(junk))
        ):
            pass


def test_the_defaults_are_strict() -> None:
    assert TlsOptions().verify_host
    assert TlsOptions().protocols == ("TLSv1.2", "TLSv1.3")
