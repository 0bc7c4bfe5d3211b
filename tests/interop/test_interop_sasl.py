"""SASL with the peer, which reads JAAS files: its client and ours, its bookies and ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from doubles.kdc import REALM, Kdc, need_kerberos
from interop.peer_driver import Peer, PeerError
from interop.sides import JavaSide, OwnSide, Shape
from interop.test_interop_security import kinds, round_trip, secured
from quorumbook.errors import NotEnoughBookiesError, SecurityError

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

PASSWORD = "a password"
PACKAGE = "org.apache.bookkeeper.sasl"
SERVED: Any = {"bookieAuthProviderFactoryClass": f"{PACKAGE}.SASLBookieAuthProviderFactory"}
USED: Any = {"clientAuthProviderFactoryClass": f"{PACKAGE}.SASLClientProviderFactory"}


class Mechanism:
    """How both sides are told of one mechanism."""

    def __init__(self, peer: Peer, own: Any, mine: Any, wrong: Any, served: Any) -> None:
        #: A process of the peer's with the JAAS file.
        self.peer = peer
        #: Options of our bookies, of our client, and of one that is not let in.
        self.own, self.mine, self.wrong = own, mine, wrong
        #: Options of the peer's bookies.
        self.served = {**SERVED, **served}


def secret_file(directory: Path, name: str, line: str) -> str:
    path = directory / name
    path.write_text(f"{line}\n")
    path.chmod(0o600)
    return str(path)


def peer_with(java: Any, directory: Path, jaas: str, *options: str) -> Peer:
    file = directory / "jaas.conf"
    file.write_text(jaas)
    return Peer(
        java, directory / "peer", options=[f"-Djava.security.auth.login.config={file}", *options]
    )


@pytest.fixture(scope="module")
def by_password(java: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mechanism]:
    directory = tmp_path_factory.mktemp("digest")
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    peer = peer_with(
        java,
        directory,
        f'Bookie {{ {module} user_hd="{PASSWORD}"; }};\n'
        f'BookKeeper {{ {module} username="hd" password="{PASSWORD}"; }};\n',
    )
    plugin = {"auth_plugin": "sasl-digest-md5"}
    yield Mechanism(
        peer,
        {**plugin, "auth_settings": secret_file(directory, "known", f"hd:{PASSWORD}")},
        {**plugin, "auth_settings": secret_file(directory, "mine", f"hd:{PASSWORD}")},
        {**plugin, "auth_settings": secret_file(directory, "wrong", "hd:guessed")},
        {"saslJaasClientAllowedIds": ".*hd.*"},
    )
    peer.stop()


@pytest.fixture(scope="module")
def by_ticket(java: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mechanism]:
    need_kerberos()
    directory = tmp_path_factory.mktemp("kerberos")
    kdc = Kdc(directory)
    served, used, strange = map(
        kdc.keytab, ("bookkeeper/127.0.0.1", "bookkeeperclient/localhost", "stranger/localhost")
    )
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
    peer = peer_with(
        java,
        directory,
        f'Bookie {{ {module} keyTab="{served}" principal="bookkeeper/127.0.0.1@{REALM}"; }};\n'
        f'BookKeeper {{ {module} keyTab="{used}"'
        f' principal="bookkeeperclient/localhost@{REALM}"; }};\n',
        f"-Djava.security.krb5.conf={kdc.config}",
    )
    plugin = {"auth_plugin": "sasl-kerberos"}
    with pytest.MonkeyPatch.context() as patch:
        # In this process, too, Kerberos looks at our KDC.
        patch.setenv("KRB5_CONFIG", str(kdc.config))
        yield Mechanism(
            peer,
            {**plugin, "auth_settings": f"keytab={served}"},
            {**plugin, "auth_settings": f"principal=bookkeeperclient/localhost keytab={used}"},
            {**plugin, "auth_settings": f"principal=stranger/localhost keytab={strange}"},
            {},
        )
    peer.stop()
    kdc.stop()


@pytest.mark.parametrize("bookies", ["own", "java"])
@pytest.mark.parametrize("mechanism", ["by_password", "by_ticket"])
async def test_both_sides_let_each_other_in(
    request: pytest.FixtureRequest, java: Any, zookeeper: Any, tmp_path: Path,
    mechanism: str, bookies: str,
) -> None:  # fmt: skip
    means: Mechanism = request.getfixturevalue(mechanism)
    peer = means.peer
    async with secured(
        java, peer, zookeeper, tmp_path,
        own_options=means.own, java_conf=means.served, **kinds(bookies),
    ) as (cluster, running):  # fmt: skip
        ours = await OwnSide.connect(cluster.uri, **means.mine)
        v2 = await JavaSide.connect(peer, cluster.uri, v2=True, **USED)
        v3 = await JavaSide.connect(peer, cluster.uri, **USED)
        stranger = await OwnSide.connect(cluster.uri, **means.wrong)
        nobody = await JavaSide.connect(peer, cluster.uri, addEntryTimeoutSec=3)
        try:
            for one, other in ((v2, ours), (v3, ours), (ours, v2), (ours, v3)):
                await round_trip(one, other)
                await round_trip(one, other, is_closed=False)
            assert not any(bookie.metrics.connections_unauthorized for bookie in running)
            # A bookie of the peer's says nothing to whom it does not let in.
            with pytest.raises((SecurityError, NotEnoughBookiesError)):
                await stranger.create(Shape())
            with pytest.raises(PeerError):
                await (await nobody.create(Shape())).append("no", [1])
        finally:
            await asyncio.gather(*(each.close() for each in (ours, v2, v3, stranger, nobody)))
