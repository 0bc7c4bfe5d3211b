"""Names of Pulsar's topics, and where the metadata store has them; pure.

    persistent://eu/shop/orders, eu/shop/orders, eu/shop/orders-partition-3

A partitioned topic is as many topics as it has partitions, each with its own ledgers.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import quote_plus, unquote_plus

from quorumbook.errors import ConfigError

_SCHEME = "persistent://"
_PARTITION = re.compile(r"(.+)-partition-(\d{1,9})")


class TopicName(NamedTuple):
    """The name of one topic, which may be a partition of another."""

    tenant: str
    namespace: str
    local: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read a name.

        Raises:
            ConfigError: it is not the name of a topic that is stored.
        """
        parts = text.removeprefix(_SCHEME).split("/")
        if "://" in text.removeprefix(_SCHEME) or len(parts) != 3 or not all(parts):
            raise ConfigError(
                f"{text!r} is not a topic of Pulsar: write TENANT/NAMESPACE/TOPIC, as in "
                "public/default/orders"
            )
        return cls(*parts)

    @property
    def partition(self) -> int:
        """Which partition it is; -1: none."""
        match = _PARTITION.fullmatch(self.local)
        return -1 if match is None else int(match[2])

    @property
    def bare(self) -> TopicName:
        """The partitioned topic that it is a partition of, or itself."""
        match = _PARTITION.fullmatch(self.local)
        return self if match is None else self._replace(local=match[1])

    @property
    def node(self) -> str:
        """Its ledgers' place in the tree, below the root that Pulsar has there."""
        return f"{namespace_node(self.tenant, self.namespace)}/{encoded(self.local)}"

    @property
    def schema_node(self) -> str:
        """Its schema's place in the tree, below the root; partitions share one."""
        return f"/schemas/{self.tenant}/{self.namespace}/{encoded(self.bare.local)}"

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.local}"


def namespace_node(tenant: str, namespace: str) -> str:
    """Return where the topics of a namespace are, below Pulsar's root."""
    return f"/managed-ledgers/{tenant}/{namespace}/persistent"


def encoded(local: str) -> str:
    """Return a topic's own name as a node's, as Java's ``URLEncoder`` has it."""
    return quote_plus(local, safe="*").replace("~", "%7E")


def decoded(node: str) -> str:
    """Return the topic's own name that a node has."""
    return unquote_plus(node)
