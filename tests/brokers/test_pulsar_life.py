"""What a topic's ledgers go through on our bookies, with a real broker of Apache Pulsar."""

from __future__ import annotations

import pytest

from brokers.pulsar_cluster import PulsarCluster, wait_until
from brokers.topics import EARLIEST, Writer, in_order, read_all, receive_all

SIZE = 8000

pytestmark = [
    pytest.mark.interop,
    pytest.mark.xdist_group("pulsar"),
    # Pulsar's jars may have to be fetched first.
    pytest.mark.timeout(600),
]


def log_bytes(cluster: PulsarCluster) -> int:
    return sum(bookie.entry_log_bytes() for bookie in cluster.bookies)


def test_a_topic_is_written_through_kills_read_back_deleted_and_collected(
    pulsar_cluster: PulsarCluster,
) -> None:
    cluster, broker = pulsar_cluster, pulsar_cluster.brokers[0]
    namespace = cluster.make_namespace("life")
    topic, kept = f"{namespace}/topic", f"{namespace}/kept"
    client = cluster.client()
    consumers = [client.subscribe(name, "s", initial_position=EARLIEST) for name in (topic, kept)]
    lives = Writer(client, kept)
    lives.send(300)
    stays = lives.finish()

    writer = Writer(client, topic)
    writer.send(400, SIZE)
    wait_until(lambda: len(writer.acknowledged) > 100, "the first messages")
    cluster.bookies[0].kill()
    writer.send(400, SIZE)
    wait_until(lambda: len(writer.acknowledged) > 500, "messages without a bookie")
    broker.kill()
    cluster.bookies[0].start()
    broker.start()
    writer.send(400, SIZE)
    written = writer.finish()
    found = read_all(client, topic)
    assert in_order(found) == sorted(written)
    ledgers = cluster.ledgers_of(topic)
    assert len(ledgers) > 5, "every 200 messages begin a new ledger"

    # Consumed ledgers are deleted, and their space comes back; nothing else goes.
    copies_bytes = 2 * SIZE * len(written)
    wait_until(lambda: log_bytes(cluster) > copies_bytes / 2, "entry logs of all that")
    receive_all(consumers[0], written)

    def is_trimmed() -> bool:
        cluster.admin_of(topic, "trim", "POST")
        return len(cluster.ledgers_of(topic)) == 1

    wait_until(is_trimmed, "ledgers that are consumed are deleted")

    def is_collected() -> bool:
        for bookie in cluster.bookies:
            bookie.collect()
        return log_bytes(cluster) < copies_bytes / 2

    wait_until(is_collected, "the space of deleted ledgers")
    # A topic that is loaded again has nothing in the broker's caches.
    cluster.admin_of(kept, "unload", "PUT")
    assert in_order(read_all(client, kept)) == sorted(stays)
    receive_all(consumers[1], stays)
