"""What holds of every stream that nobody writes, whatever became of its writers."""

from __future__ import annotations

import contextlib
from collections.abc import Set
from itertools import pairwise

from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.streams import Stream
from quorumbook.streams.format.names import is_segment_name
from quorumbook.streams.format.records import END_TXID
from quorumbook.streams.format.segment_text import CURRENT_VERSION, Truncation
from quorumbook.streams.stream_context import stream_context


async def read_payloads(stream: Stream) -> list[bytes]:
    """Read a stream from its beginning to its end."""
    async with stream.reader(tail=False) as reader:
        return [record.payload async for record in reader]


async def unnamed_ledgers(stream: Stream, others: Set[int] = frozenset()) -> set[int]:
    """Return the ledgers that say they are the stream's, and that no node of it names.

    Args:
        others: Those that were there before the stream, which need not be looked at.
    """
    client = stream_context(stream).client
    whose = {"component": b"stream", "stream": stream.name.encode()}.items()
    found = set()
    async for ledger_id in client.list_ledger_ids():
        if ledger_id not in others:
            with contextlib.suppress(NoSuchLedgerInMetadataError):  # it was just deleted
                metadata = await client.ledger_metadata(ledger_id)
                if whose <= metadata.custom_metadata.items():
                    found.add(ledger_id)
    named = {segment.metadata.ledger_id for segment in await stream.segments()}
    return found - named - {(await stream_context(stream).nodes.read_state()).allocated}


async def assert_sound(stream: Stream) -> None:
    """Assert that its nodes are what the peer takes, and say of its entries what is so."""
    nodes = stream_context(stream).nodes
    names = await nodes.store.children(nodes.paths.segments)
    assert all(map(is_segment_name, names))
    segments = [segment.metadata for segment in await stream.segments()]
    assert len(names) == len(segments)
    state = await nodes.read_state()
    assert state.max_segment in (segments[-1].number, segments[-1].number + 1)
    assert state.max_txid >= segments[-1].last_txid
    for before, after in pairwise(segments):
        assert after.number == before.number + 1
        assert after.start_sequence_id == before.start_sequence_id + before.record_count
        assert after.first_txid >= before.last_txid
        assert after.last_txid >= before.last_txid
        assert after.completed_at_ms >= before.completed_at_ms
    async with stream.reader(tail=False, on_truncated="skip") as reader:
        records = [record async for record in reader]
    for before, after in pairwise(records):
        assert after.sequence_id == before.sequence_id + 1
        assert after.position > before.position
        assert after.txid >= before.txid
    for segment in segments:
        assert segment.version == CURRENT_VERSION
        assert not segment.is_in_progress
        assert segment.first_txid <= segment.last_txid
        ledger = await stream_context(stream).client.ledger_metadata(segment.ledger_id)
        assert ledger.is_closed
        assert segment.last_entry <= ledger.last_entry_id
        if segment.truncation is Truncation.ACTIVE:
            own = [record for record in records if record.position.segment == segment.number]
            is_sealed = segment is segments[-1] and state.max_txid == END_TXID
            assert len(own) == segment.record_count
            assert own or is_sealed
            assert is_sealed or segment.last_txid == own[-1].txid
            if own:
                assert own[0].sequence_id == segment.start_sequence_id
                assert own[-1].position <= segment.last_position
