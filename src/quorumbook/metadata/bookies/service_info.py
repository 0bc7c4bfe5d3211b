"""What a bookie says about itself in its registration node.

    BookieServiceInfoFormat   endpoints 6: id 1, port 2, host 3, protocol 4, auth 5, extensions 6
                              properties 7: key 1, value 2
    in properties             key_before_entries: true    ours: see ``KEY_BEFORE_ENTRIES``

An empty node, as very old bookies leave it, means one endpoint that the bookie id names as
``host:port``.  Clients connect to the first endpoint whose protocol is ``bookie-rpc``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from quorumbook.errors import MetadataFormatError
from quorumbook.ids import BookieId
from quorumbook.protocol.messages import message_class

BOOKIE_PROTOCOL = "bookie-rpc"
#: A bookie that says so can be told a ledger's key before its first entry.  A Java bookie takes
#: the key too, but answers READ_LAC with an error then until there is an entry, which ends readers.
KEY_BEFORE_ENTRIES = {"key_before_entries": "true"}


@dataclass(frozen=True, slots=True)
class BookieEndpoint:
    """One port a bookie listens on."""

    id: str
    port: int
    host: str
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """All a bookie says about itself."""

    endpoints: tuple[BookieEndpoint, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_bookie(
        cls, host: str, port: int, *, extensions: tuple[str, ...] = ()
    ) -> BookieServiceInfo:
        """Return what a bookie with one port says."""
        return cls((BookieEndpoint("bookie", port, host, BOOKIE_PROTOCOL, extensions=extensions),))

    def address(self, bookie_id: BookieId) -> tuple[str, int]:
        """Return host and port that clients connect to.

        Raises:
            MetadataFormatError: there is no endpoint for clients.
        """
        for endpoint in self.endpoints:
            if endpoint.protocol == BOOKIE_PROTOCOL:
                return endpoint.host, endpoint.port
        raise MetadataFormatError(
            f"bookie {bookie_id} has no endpoint that speaks {BOOKIE_PROTOCOL}",
            bookie_id=bookie_id,
        )

    @property
    def takes_key_before_entries(self) -> bool:
        """Tell whether the bookie may be told a ledger's key before its first entry."""
        return KEY_BEFORE_ENTRIES.items() <= self.properties.items()

    def encode(self) -> bytes:
        """Return the content of the registration node."""
        message = message_class("BookieServiceInfoFormat")()
        for endpoint in self.endpoints:
            message.endpoints.add(
                id=endpoint.id,
                port=endpoint.port,
                host=endpoint.host,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
        message.properties.update(self.properties)
        data: bytes = message.SerializeToString(deterministic=True)
        return data

    @classmethod
    def decode(cls, bookie_id: BookieId, data: bytes) -> BookieServiceInfo:
        """Read the content of a registration node.

        Raises:
            MetadataFormatError: it cannot be understood.
        """
        if not data:
            return cls((_endpoint_of_id(bookie_id),))
        message = message_class("BookieServiceInfoFormat")()
        try:
            message.ParseFromString(data)
        except DecodeError as error:
            raise _bad(bookie_id, str(error)) from error
        if not message.IsInitialized():
            raise _bad(bookie_id, "a required field is missing")
        endpoints = tuple(
            BookieEndpoint(
                each.id,
                each.port,
                each.host,
                each.protocol,
                tuple(each.auth),
                tuple(each.extensions),
            )
            for each in message.endpoints
        )
        return cls(endpoints, dict(message.properties))


def _endpoint_of_id(bookie_id: BookieId) -> BookieEndpoint:
    host, _, port = bookie_id.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise _bad(bookie_id, "it is empty and the id is not a host:port")
    return BookieEndpoint(bookie_id, int(port), host, BOOKIE_PROTOCOL)


def _bad(bookie_id: BookieId, problem: str) -> MetadataFormatError:
    return MetadataFormatError(
        f"registration of bookie {bookie_id}: {problem}", bookie_id=bookie_id
    )
