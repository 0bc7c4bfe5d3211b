"""Writing to topics and reading them back, with an account of what was acknowledged."""

from __future__ import annotations

import threading
import zlib
from typing import Any

import pulsar

#: A broker may be away for as long as it takes to start one.
_SEND_TIMEOUT_MS = 120_000
_RECEIVE_TIMEOUT_MS = 60_000
EARLIEST = pulsar.InitialPosition.Earliest


def payload(number: int, size: int = 1000) -> bytes:
    """Return the content of a message: its number, and bytes that follow from it."""
    head = b"%d:" % number
    seed = zlib.crc32(head)
    return head + bytes((seed >> shift * 8) & 255 for shift in range(4)) * (size // 4)


def number_of(data: bytes) -> int:
    """Return a message's number; raise unless all of it is as it was written."""
    number, size = int(data.partition(b":")[0]), len(data)
    head = len(b"%d:" % number)
    assert data == payload(number, size - head), f"message {number} was changed"
    return number


class Writer:
    """A producer, and the numbers of the messages that were acknowledged to it."""

    def __init__(self, client: pulsar.Client, topic: str, **options: Any) -> None:
        self.acknowledged: set[int] = set()
        self.failed: list[object] = []
        self._lock = threading.Lock()
        self._next = 0
        options.setdefault("batching_enabled", False)
        self.producer = client.create_producer(
            topic, send_timeout_millis=_SEND_TIMEOUT_MS, block_if_queue_full=True, **options
        )

    def send(self, count: int, size: int = 1000, **how: Any) -> None:
        """Send so many messages without waiting for them."""
        for number in range(self._next, self._next + count):
            self.producer.send_async(payload(number, size), self._callback(number), **how)
        self._next += count

    @property
    def sent(self) -> int:
        """How many messages were sent so far."""
        return self._next

    def _callback(self, number: int) -> Any:
        def done(result: Any, _: object) -> None:
            with self._lock:
                if result == pulsar.Result.Ok:
                    self.acknowledged.add(number)
                else:
                    self.failed.append(result)

        return done

    def finish(self) -> set[int]:
        """Wait for all of them, and return the numbers of those that were acknowledged."""
        self.producer.flush()
        assert self.failed == []
        assert self.acknowledged == set(range(self._next))
        self.producer.close()
        return self.acknowledged


def read_all(client: pulsar.Client, topic: str, **options: Any) -> list[int]:
    """Return the numbers of all messages of a topic, from the earliest on."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **options)
    found = []
    while reader.has_message_available():
        found.append(number_of(reader.read_next(_RECEIVE_TIMEOUT_MS).data()))
    reader.close()
    return found


def in_order(found: list[int]) -> list[int]:
    """Return each number once, where it is first: a broker's death may repeat messages."""
    return list(dict.fromkeys(found))


def receive(consumer: Any, count: int, *, acknowledge: bool = True) -> list[int]:
    """Receive so many messages and return their numbers."""
    found = []
    for _ in range(count):
        message = consumer.receive(_RECEIVE_TIMEOUT_MS)
        found.append(number_of(message.data()))
        if acknowledge:
            consumer.acknowledge(message)
    return found


def receive_all(consumer: Any, wanted: set[int]) -> None:
    """Receive and acknowledge until every wanted message was there."""
    missing = set(wanted)
    while missing:
        message = consumer.receive(_RECEIVE_TIMEOUT_MS)
        missing.discard(number_of(message.data()))
        consumer.acknowledge(message)
