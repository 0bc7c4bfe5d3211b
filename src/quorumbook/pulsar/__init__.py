"""Topics of Apache Pulsar as tables, read straight from the bookies that hold them.

Leaves writing to Pulsar's brokers, and needs none of them; Spark's columns stand on the same
(``quorumbook.spark``, ``pulsar:``).
"""

from quorumbook.pulsar.entries import Message
from quorumbook.pulsar.managed_ledgers import TopicLedger
from quorumbook.pulsar.names import TopicName
from quorumbook.pulsar.schemas import TopicSchema
from quorumbook.pulsar.topic import Topic, list_topics

__all__ = ["Message", "Topic", "TopicLedger", "TopicName", "TopicSchema", "list_topics"]
