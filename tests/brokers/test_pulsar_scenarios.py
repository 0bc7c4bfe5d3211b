"""Scenarios of a real broker of Apache Pulsar on our bookies; ``make interop-pulsar`` runs them.

Each works on topics of its own.  Those that kill something see it back before they end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from brokers.pulsar_cluster import PulsarCluster, request, wait_until
from brokers.topics import (
    EARLIEST,
    Writer,
    in_order,
    number_of,
    payload,
    read_all,
    receive,
    receive_all,
)

pytestmark = [
    pytest.mark.interop,
    pytest.mark.xdist_group("pulsar"),
    pytest.mark.timeout(600),
]
MEGABYTE = 1024 * 1024


@pytest.fixture
def client(pulsar_cluster: PulsarCluster) -> Any:
    return pulsar_cluster.client()


@pytest.fixture
def new_topic(pulsar_cluster: PulsarCluster) -> Callable[[], str]:
    """Return what makes names of topics in a namespace of their own."""
    namespace = pulsar_cluster.make_namespace(f"n{uuid.uuid4().hex[:8]}")
    # A broker deletes what no subscription asks for; here readers come later.
    keep_for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    name = namespace.removeprefix("persistent://")
    pulsar_cluster.brokers[0].admin(f"namespaces/{name}/retention", "POST", keep_for_ever)
    return lambda: f"{namespace}/{uuid.uuid4().hex[:8]}"


def written(client: pulsar.Client, topic: str, count: int, size: int = 1000, **options: Any) -> Any:
    """Write so many messages, and return the numbers of those that were acknowledged."""
    how = options.pop("how", {})
    writer = Writer(client, topic, **options)
    writer.send(count, size, **how)
    return writer.finish()


def restart_broker(pulsar_cluster: PulsarCluster) -> None:
    """Kill the broker and start it again, with nothing in its caches."""
    pulsar_cluster.brokers[0].kill()
    pulsar_cluster.brokers[0].start()


def test_messages_are_read_from_bookies_after_the_broker_was_killed(
    pulsar_cluster, client, new_topic
):
    topic = new_topic()
    count = len(written(client, topic, 1000))
    restart_broker(pulsar_cluster)
    assert read_all(client, topic) == list(range(count))


def test_batches_are_entries_and_come_back_whole(pulsar_cluster, client, new_topic):
    topic = new_topic()
    written(client, topic, 5000, 100, batching_enabled=True, batching_max_messages=500)
    entries = pulsar_cluster.admin_of(topic, "internalStats")["entriesAddedCounter"]
    assert entries < 1000
    restart_broker(pulsar_cluster)
    assert read_all(client, topic) == list(range(5000))


@pytest.mark.parametrize("name", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_compressed_messages_come_back(pulsar_cluster, client, new_topic, name):
    topic = new_topic()
    written(client, topic, 300, 5000, compression_type=getattr(pulsar.CompressionType, name))
    assert read_all(client, topic) == list(range(300))


def test_messages_of_five_megabytes_come_back(pulsar_cluster, client, new_topic):
    topic = new_topic()
    # What is left of the limit is for the message's metadata.
    written(client, topic, 6, 5 * MEGABYTE - 16 * 1024)
    restart_broker(pulsar_cluster)
    assert read_all(client, topic) == list(range(6))


def test_chunked_messages_larger_than_an_entry_come_back(pulsar_cluster, client, new_topic):
    topic = new_topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    written(client, topic, 3, 12 * MEGABYTE, chunking_enabled=True)
    assert receive(consumer, 3) == [0, 1, 2]
    entries = pulsar_cluster.admin_of(topic, "internalStats")["entriesAddedCounter"]
    assert entries >= 9


def test_partitions_share_a_topics_messages(pulsar_cluster, client, new_topic):
    topic = new_topic()
    pulsar_cluster.admin_of(topic, "partitions", "PUT", 3)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    written(client, topic, 600)
    assert sorted(receive(consumer, 600)) == list(range(600))
    ledgers = [pulsar_cluster.ledgers_of(f"{topic}-partition-{number}") for number in range(3)]
    assert all(ledgers)


@pytest.mark.parametrize("name", ["Shared", "KeyShared", "Failover", "Exclusive"])
def test_subscriptions_go_on_where_they_were_after_the_broker_was_killed(
    pulsar_cluster, client, new_topic, name
):
    topic, kind = new_topic(), getattr(pulsar.ConsumerType, name)
    how = {"consumer_type": kind, "initial_position": EARLIEST}
    consumer = client.subscribe(topic, "s", **how)
    numbers = written(client, topic, 600, how={"partition_key": "k"})
    early = set(receive(consumer, 250))
    cursor = lambda: pulsar_cluster.admin_of(topic, "internalStats")["cursors"]["s"]  # noqa: E731
    wait_until(lambda: cursor()["messagesConsumedCounter"] >= 250, "acknowledgements at the broker")
    consumer.close()
    restart_broker(pulsar_cluster)
    consumer = client.subscribe(topic, "s", **how)
    # What was acknowledged may come again, nothing else may be missing.
    receive_all(consumer, set(numbers) - early)


def test_acknowledgements_with_many_holes_are_kept_in_a_cursors_ledger(
    pulsar_cluster, client, new_topic
):
    topic = new_topic()
    how = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": EARLIEST}
    consumer = client.subscribe(topic, "s", **how)
    written(client, topic, 400)
    for number in range(400):
        message = consumer.receive(60_000)
        if number % 2:
            consumer.acknowledge(message)
    cursor = lambda: pulsar_cluster.admin_of(topic, "internalStats")["cursors"]["s"]  # noqa: E731
    wait_until(lambda: cursor()["messagesConsumedCounter"] >= 200, "acknowledgements at the broker")
    consumer.close()
    # It is stored in order when the topic is unloaded.
    pulsar_cluster.admin_of(topic, "unload", "PUT")
    restart_broker(pulsar_cluster)
    consumer = client.subscribe(topic, "s", **how)
    assert sorted(receive(consumer, 200)) == list(range(0, 400, 2))
    with pytest.raises(pulsar.Timeout):
        consumer.receive(1000)


def test_writing_goes_on_while_each_bookie_in_turn_is_killed(pulsar_cluster, client, new_topic):
    topic = new_topic()
    writer = Writer(client, topic)
    for bookie in pulsar_cluster.bookies:
        writer.send(500)
        bookie.kill()
        writer.send(500)
        wait_until(lambda: len(writer.acknowledged) == writer.sent, "messages without a bookie")
        bookie.start()
    numbers = writer.finish()
    restart_broker(pulsar_cluster)
    assert in_order(read_all(client, topic)) == sorted(numbers)


def test_all_bookies_killed_at_once_lose_nothing(pulsar_cluster, client, new_topic):
    topic = new_topic()
    writer = Writer(client, topic)
    writer.send(500)
    wait_until(lambda: len(writer.acknowledged) > 50, "the first messages")
    for bookie in pulsar_cluster.bookies:
        bookie.kill()
    for bookie in pulsar_cluster.bookies:
        bookie.start()
    writer.send(500)
    numbers = writer.finish()
    restart_broker(pulsar_cluster)
    assert in_order(read_all(client, topic)) == sorted(numbers)


def test_broker_and_bookie_killed_at_once_lose_nothing(pulsar_cluster, client, new_topic):
    topic = new_topic()
    writer = Writer(client, topic)
    writer.send(500)
    wait_until(lambda: len(writer.acknowledged) > 50, "the first messages")
    pulsar_cluster.brokers[0].kill()
    pulsar_cluster.bookies[1].kill()
    pulsar_cluster.brokers[0].start()
    writer.send(500)
    numbers = writer.finish()
    assert in_order(read_all(client, topic)) == sorted(numbers)
    pulsar_cluster.bookies[1].start()


def test_ledgers_roll_over_by_entries_and_by_a_broker_that_unloads(
    pulsar_cluster, client, new_topic
):
    topic = new_topic()
    written(client, topic, 1000)
    assert len(pulsar_cluster.ledgers_of(topic)) >= 5
    before = pulsar_cluster.ledgers_of(topic)
    pulsar_cluster.admin_of(topic, "unload", "PUT")
    wait_until(lambda: set(pulsar_cluster.ledgers_of(topic)) - set(before), "a new ledger")
    assert read_all(client, topic) == list(range(1000))


def test_retention_keeps_and_then_deletes_consumed_ledgers(pulsar_cluster, client, new_topic):
    topic = new_topic()
    namespace = "/".join(topic.removeprefix("persistent://").split("/")[:2])
    admin = pulsar_cluster.brokers[0].admin
    admin(f"namespaces/{namespace}/retention", "POST",
          {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100})  # fmt: skip
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    numbers = written(client, topic, 1000)
    receive_all(consumer, numbers)
    pulsar_cluster.admin_of(topic, "trim", "POST")
    assert read_all(client, topic) == list(range(1000))
    admin(f"namespaces/{namespace}/retention", "POST",
          {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})  # fmt: skip

    def is_trimmed() -> bool:
        pulsar_cluster.admin_of(topic, "trim", "POST")
        return len(pulsar_cluster.ledgers_of(topic)) == 1

    wait_until(is_trimmed, "ledgers that retention gives up")


def test_a_subscription_seeks_back_to_the_earliest_message(pulsar_cluster, client, new_topic):
    topic = new_topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    written(client, topic, 500)
    # A backlog keeps what the first subscription has consumed.
    client.subscribe(topic, "backlog", initial_position=EARLIEST)
    receive(consumer, 500)
    consumer.seek(pulsar.MessageId.earliest)
    assert in_order(receive(consumer, 500)) == list(range(500))


def test_compaction_keeps_the_latest_message_of_each_key(pulsar_cluster, client, new_topic):
    topic = new_topic()
    producer = client.create_producer(topic)
    for number in range(500):
        producer.send(payload(number, 100), partition_key=str(number % 10))
    producer.close()
    pulsar_cluster.admin_of(topic, "compaction", "PUT")
    state = lambda: pulsar_cluster.admin_of(topic, "compaction")["status"]  # noqa: E731
    wait_until(lambda: state() == "SUCCESS", "a compaction")
    restart_broker(pulsar_cluster)
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = [number_of(reader.read_next(60_000).data()) for _ in range(10)]
    assert sorted(found) == list(range(490, 500))


def test_delayed_messages_come_when_they_are_due(pulsar_cluster, client, new_topic):
    from datetime import timedelta

    topic = new_topic()
    how = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": EARLIEST}
    consumer = client.subscribe(topic, "s", **how)
    written(client, topic, 20, how={"deliver_after": timedelta(seconds=3)})
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    assert sorted(receive(consumer, 20)) == list(range(20))


def test_schemas_are_kept_in_ledgers(pulsar_cluster, client, new_topic):
    class Order(pulsar.schema.Record):
        number = pulsar.schema.Integer()

    topic, schema = new_topic(), pulsar.schema.JsonSchema(Order)
    producer = client.create_producer(topic, schema=schema)
    for number in range(10):
        producer.send(Order(number=number))
    restart_broker(pulsar_cluster)
    name = topic.removeprefix("persistent://")
    known = pulsar_cluster.brokers[0].admin(f"schemas/{name}/schema")
    assert known["type"] == "JSON"
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
    assert [reader.read_next(60_000).value().number for _ in range(10)] == list(range(10))


def test_two_brokers_fail_over(pulsar_cluster, new_topic):
    topic = new_topic()
    second = pulsar_cluster.add_broker()
    try:
        client = pulsar_cluster.client()
        writer = Writer(client, topic)
        for broker in pulsar_cluster.brokers:
            writer.send(300)
            wait_until(lambda: len(writer.acknowledged) == writer.sent, "messages")
            broker.kill()
            writer.send(300)
            wait_until(lambda: len(writer.acknowledged) == writer.sent, "messages by the other")
            broker.start()
        numbers = writer.finish()
        assert in_order(read_all(client, topic)) == sorted(numbers)
    finally:
        second.kill()
        pulsar_cluster.brokers.remove(second)
        restart_broker(pulsar_cluster)


def test_a_zookeeper_that_starts_again_stops_nobody(pulsar_cluster, client, new_topic):
    topic = new_topic()
    writer = Writer(client, topic)
    writer.send(150)
    wait_until(lambda: len(writer.acknowledged) == writer.sent, "messages")
    pulsar_cluster.zookeeper.kill()
    pulsar_cluster.zookeeper.start()
    pulsar_cluster.zookeeper.wait_ready()
    writer.send(450)
    numbers = writer.finish()
    assert in_order(read_all(client, topic)) == sorted(numbers)


def test_auto_recovery_copies_what_a_lost_bookie_had(pulsar_cluster, client, new_topic):
    topic = new_topic()
    numbers = written(client, topic, 1000)
    spare = pulsar_cluster.add_bookie()
    lost = pulsar_cluster.bookies[0]
    with pulsar_cluster.auto_recovery() as recovery:
        lost.kill()
        wait_until(lambda: pulsar_cluster.names_in_ledgers(lost.id) == 0, "copies of all ledgers")
        assert recovery.poll() is None
    restart_broker(pulsar_cluster)
    assert read_all(client, topic) == sorted(numbers)
    lost.start()
    spare.stop()
    pulsar_cluster.bookies.remove(spare)


def test_a_deleted_topic_gives_its_space_back_and_no_other(pulsar_cluster, client, new_topic):
    logs = lambda: sum(bookie.entry_log_bytes() for bookie in pulsar_cluster.bookies)  # noqa: E731

    def collect() -> None:
        for bookie in pulsar_cluster.bookies:
            bookie.collect()

    collect()
    topic, kept = new_topic(), new_topic()
    size, before = 2 * 8000 * 1200, logs()
    stays = written(client, kept, 300, 8000)
    written(client, topic, 1200, 8000)
    wait_until(lambda: logs() > before + size / 2, "entry logs")
    pulsar_cluster.brokers[0].admin(topic.replace("://", "/") + "?force=true", "DELETE")
    # What is still in memory goes into entry logs for a while.
    most = logs()

    def is_collected() -> bool:
        nonlocal most
        collect()
        most = max(most, logs())
        return logs() < most - size / 2

    wait_until(is_collected, "the space of a deleted topic")
    restart_broker(pulsar_cluster)
    assert read_all(client, kept) == sorted(stays)


def test_a_bookie_joins_by_each_uri_that_is_right_beside_pulsar(pulsar_cluster, client, new_topic):
    for scheme in ("zk", "zk+hierarchical", "zk+null"):
        bookie = pulsar_cluster.add_bookie(scheme=scheme)
        assert request(f"{bookie.http}/api/v1/bookie/gc_plan")["missing_ledgers"] == 0
        bookie.stop()
        pulsar_cluster.bookies.remove(bookie)
    for scheme in ("zk+longhierarchical", "zk+flat"):
        with pytest.raises(AssertionError, match="the cluster's layout is hierarchical"):
            pulsar_cluster.add_bookie(scheme=scheme)
