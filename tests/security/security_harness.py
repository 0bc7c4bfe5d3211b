"""Real bookies with TLS and authentication, clients of them, and raw connections."""

from __future__ import annotations

import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator
from typing import Any

import quorumbook
from doubles.certificates import Authority, Issued
from doubles.raw_client import RawClient
from quorumbook.bookie.options import BookieOptions
from quorumbook.bookie.server import Bookie
from quorumbook.client.client import BookKeeper
from quorumbook.env import Env, TlsOptions
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.uri import open_store
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.options import StorageOptions

PASSWORD = b"passwd"
KEY = master_key(PASSWORD)
#: Longer than anything here takes.
PATIENCE_S = 30
SOLO: Any = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
_numbers = itertools.count(1)


def bookie_tls(ca: Authority, issued: Issued, **changes: Any) -> TlsOptions:
    """Return a bookie's options; it looks at its files at every handshake."""
    return TlsOptions(
        **{
            "certificate_file": issued.certificate_file,
            "key_file": issued.key_file,
            "ca_file": ca.ca_file,
            "reload_interval_s": 1e-9,
            **changes,
        }
    )


def client_tls(ca: Authority, issued: Issued | None = None, **changes: Any) -> TlsOptions:
    """Return a client's options; with a certificate, it shows it."""
    own: dict[str, Any] = {"ca_file": ca.ca_file}
    if issued is not None:
        own |= {
            "certificate_file": issued.certificate_file,
            "key_file": issued.key_file,
            "client_authentication": True,
        }
    return TlsOptions(**{**own, **changes})


class Cluster:
    """Bookies in this process, and where they are registered."""

    def __init__(self, uri: str, bookies: list[Bookie]) -> None:
        self.uri = uri
        self.bookies = bookies

    @property
    def bookie(self) -> Bookie:
        """The only one, or the first."""
        return self.bookies[0]

    def connect(self, **options: Any) -> BookKeeper:
        """Return a client."""
        return quorumbook.connect(self.uri, **options)

    async def raw(self) -> RawConnection:
        """Connect in the clear."""
        return await RawConnection.connect(self.bookie.address[1])


@contextlib.asynccontextmanager
async def secure_cluster(
    root: object, count: int = 1, *, host: str = "127.0.0.1", **changes: Any
) -> AsyncIterator[Cluster]:
    """Run bookies with these options."""
    name = f"security-{next(_numbers)}"
    store = await open_store(f"memory://{name}", create=True)
    await init_cluster(store)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(forget_memory_tree, name)
        stack.push_async_callback(store.close)
        bookies = []
        for index in range(count):
            options = BookieOptions(
                journal_directories=(f"{root}/{name}-{index}/journal",),
                ledger_directories=(f"{root}/{name}-{index}/ledgers",),
                host="127.0.0.1",
                advertised_host=host,
                port=0,
                storage=StorageOptions(
                    write_cache_size_bytes=64 << 20,
                    journal_file_size_bytes=64 << 20,
                ),
                min_high_priority_free_bytes=1,
                max_disk_usage=1.0,
                disk_usage_writable=1.0,
                **changes,
            )
            bookie = Bookie(Env(), options, store)
            await bookie.start()
            stack.push_async_callback(bookie.stop)
            bookies.append(bookie)
        yield Cluster(f"memory://{name}", bookies)


class RawConnection(RawClient):
    """In the clear or, after ``start_tls``, encrypted."""

    async def ask_v2(self, data: bytes) -> v2.Answer:
        """Send a v2 request and receive its answer."""
        return v2.AnswerDecoder().feed(await self.ask(data))[0]

    async def start_tls(self, context: ssl.SSLContext, host: str = "127.0.0.1") -> None:
        """Switch to TLS, by asyncio's own implementation of it."""
        response = await self.ask_v3(v3.encode_start_tls(1))
        assert not int(response.status), response
        await self.writer.start_tls(context, server_hostname=host)

    def close(self) -> None:
        """Cut it."""
        self.writer.transport.abort()


def add_frames(ledger_id: int, count: int, payload: bytes = b"payload", *, first: int = 0) -> bytes:
    """Return the frames of v2 adds, joined."""
    seal = digester(DigestType.CRC32C, PASSWORD).seal
    ids = range(first, first + count)
    return b"".join(
        v2.encode_adds(KEY, 0, [seal(ledger_id, i, -1, len(payload), payload) for i in ids])
    )


def add_v3(transaction_id: int, ledger_id: int, entry_id: int = 0) -> bytes:
    """Return the frame of a v3 add."""
    entry = digester(DigestType.CRC32C, PASSWORD).seal(ledger_id, entry_id, -1, 1, b"x")
    return v3.encode_add(transaction_id, ledger_id, entry_id, KEY, entry)
