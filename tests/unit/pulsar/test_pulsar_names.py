"""Names of topics, and the lists of their ledgers."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from doubles import pulsar_topics as laid
from quorumbook.errors import ConfigError
from quorumbook.pulsar.formats import make
from quorumbook.pulsar.managed_ledgers import TopicLedger, decode_ledgers
from quorumbook.pulsar.names import TopicName, decoded
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "pulsar.json").read_text())


def test_a_topic_has_a_node_as_java_spells_it() -> None:
    name = TopicName.parse("persistent://eu/shop/a b~*ü")
    assert name.node == "/managed-ledgers/eu/shop/persistent/a+b%7E*%C3%BC"
    assert decoded("a+b%7E*%C3%BC") == "a b~*ü"
    assert str(name) == "eu/shop/a b~*ü"


def test_a_partition_says_which_it_is() -> None:
    name = TopicName.parse("eu/shop/orders-partition-12")
    assert (name.partition, str(name.bare)) == (12, "eu/shop/orders")
    plain = TopicName.parse("eu/shop/orders-partition-")
    assert (plain.partition, plain.bare) == (-1, plain)


@pytest.mark.parametrize(
    "text", ["", "orders", "a/b", "a//c", "a/b/c/d", "non-persistent://a/b/c", "persistent://a/b"]
)
def test_what_is_not_a_topic_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="public/default/orders"):
        TopicName.parse(text)


def info(*ledgers: dict[str, object]) -> bytes:
    made = [make("LedgerInfo", **each) for each in ledgers]
    return bytes(make("ManagedLedgerInfo", ledgerInfo=made).SerializeToString())


def test_ledgers_are_in_order_with_the_entries_that_are_known() -> None:
    offloaded = make("OffloadContext", complete=True, bookkeeperDeleted=True)
    kept = make("OffloadContext", complete=True, bookkeeperDeleted=False)
    found = decode_ledgers(
        info(
            {"ledgerId": 9, "entries": 3, "offloadContext": kept},
            {"ledgerId": 7, "entries": 5, "offloadContext": offloaded},
            {"ledgerId": 8},
            {"ledgerId": 12, "entries": 4},
        )
    )
    assert found == [
        TopicLedger(7, 5, True), TopicLedger(8, None, False), TopicLedger(9, 3, False),
        # Whatever is said of the last one, it may be written.
        TopicLedger(12, None, False),
    ]  # fmt: skip
    assert decode_ledgers(b"") == []
    assert decode_ledgers(base64.b64decode(GOLDEN["ledgers"])) == [TopicLedger(6, None, False)]


@pytest.mark.parametrize("codec", [codec for codec in laid.NUMBERS if codec != "none"])
def test_a_list_may_be_compressed(codec: str) -> None:
    plain = info(*({"ledgerId": n, "entries": 1} for n in range(50)))
    how = make(
        "ManagedLedgerInfoMetadata", compressionType=laid.NUMBERS[codec],
        uncompressedSize=len(plain),
    ).SerializeToString()  # fmt: skip
    data = b"\x47\x78" + laid.sized(how) + laid.compressed(codec, plain)
    assert decode_ledgers(data) == decode_ledgers(plain)
    for end in range(2, len(data) - 1):
        with pytest.raises((CorruptRecordsError, UnsupportedFormatError)):
            decode_ledgers(data[:end])


def test_lists_that_cannot_be_are_refused() -> None:
    for data in (b"\xff", info({"ledgerId": 1}, {"ledgerId": 1}), b"\x47\x78\xff\xff\xff\xff"):
        with pytest.raises(CorruptRecordsError):
            decode_ledgers(data)
