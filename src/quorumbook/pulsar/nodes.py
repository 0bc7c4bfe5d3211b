"""Where Pulsar keeps topics in the metadata store: reads nodes, and never writes one."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from quorumbook.errors import NoSuchNodeError
from quorumbook.metadata.store import MetadataStore
from quorumbook.pulsar.managed_ledgers import TopicLedger, decode_ledgers
from quorumbook.pulsar.names import TopicName, decoded, namespace_node
from quorumbook.pulsar.schemas import decode_places
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError


class TopicState(NamedTuple):
    """A topic at one moment."""

    #: Another one for a topic that is deleted and made again.
    creation_id: int
    ledgers: list[TopicLedger]


class TopicNodes:
    """The topics of one cluster.

    Pulsar's tree lies beside that of the ledgers: ``/managed-ledgers`` where they are below
    ``/ledgers``, and ``/eu/managed-ledgers`` where they are below ``/eu/ledgers``.
    """

    def __init__(self, store: MetadataStore) -> None:
        """Take the store."""
        self._store = store
        self._root = posixpath.dirname(store.ledgers_root).rstrip("/")

    async def topics(self, tenant: str, namespace: str) -> list[TopicName]:
        """Return the topics of a namespace, partitions each by itself; none if there is none."""
        try:
            nodes = await self._store.children(self._root + namespace_node(tenant, namespace))
        except NoSuchNodeError:
            return []
        found = [TopicName(tenant, namespace, decoded(node)) for node in nodes]
        return sorted(found, key=lambda name: (name.bare, name.partition))

    async def topics_of(self, name: TopicName) -> list[TopicName]:
        """Return the topics that a name stands for: itself, or its partitions, in order."""
        if name.partition >= 0:
            return [name]
        found = await self.topics(name.tenant, name.namespace)
        return [each for each in found if each.bare == name]

    async def schema_places(self, name: TopicName) -> dict[int, tuple[int, int]]:
        """Return ledger and entry of each version of a topic's schema; none if it has none.

        Raises:
            CorruptRecordsError: what is there is not a list of versions.
        """
        node = await self._store.exists(self._root + name.schema_node)
        return {} if node is None else decode_places(node.data)

    async def state(self, name: TopicName) -> TopicState | None:
        """Return the ledgers of a topic; None if there is no such topic.

        Raises:
            CorruptRecordsError: what is there is not a list of ledgers.
            UnsupportedFormatError: it is compressed in an unknown way.
        """
        node = await self._store.exists(self._root + name.node)
        if node is None:
            return None
        try:
            return TopicState(node.creation_id, decode_ledgers(node.data))
        except (CorruptRecordsError, UnsupportedFormatError) as error:
            raise type(error)(f"the ledgers of topic {name} cannot be read: {error}") from error
