"""How a namespace of streams is opened."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorumbook.client.client import BookKeeper
from quorumbook.client.options import ClientOptions
from quorumbook.env import Env


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceOptions(ClientOptions):
    """The options of ``Namespace.open``: its own, and those of the client that it makes.

    Attributes:
        address: Such as ``sqlite:///data/metadata.db#/orders``; see ``metadata.address``.
        client: A client of its cluster; without it one is made, and closed with it.
        client_id: Under which name its writers hold locks; one is made up if not given.
        read_only: Refuse whatever would change it.
        bind: Make the node a namespace if it is none yet.
        env: The world it lives in.
    """

    address: str = field(kw_only=False)
    client: BookKeeper | None = None
    client_id: str = ""
    read_only: bool = False
    bind: bool = False
    env: Env | None = None
