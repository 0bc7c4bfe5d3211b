"""A stream of bytes is a file that grows: written, read, sought in, cut off at the beginning."""

from __future__ import annotations

import asyncio
import os

import pytest

from quorumbook.streams import ByteStream, Namespace, StreamPolicy
from quorumbook.streams.errors import PositionTruncatedError


async def test_bytes_are_read_from_any_offset(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    file, data = ByteStream(ns.stream("s")), os.urandom(1_500_000)
    assert await file.size() == 0
    async with file.reader() as reader:
        assert await reader.read() == b""
    async with file.writer() as writer:
        assert await writer.write(b"") == 0
        assert await writer.write(data[:10]) == 10
        assert await writer.write(memoryview(data)[10:1_400_000]) == 1_399_990
        assert writer.tell() == await file.size() == 1_400_000
    async with ByteStream(other.stream("s")).writer() as writer:
        assert writer.tell() == 1_400_000
        await writer.write(data[1_400_000:])
        await writer.flush()
        assert await file.size() == len(data)
    async with file.reader() as reader:
        assert await reader.read() == data
        for offset in 0, 9, 10, 11, 600_000, 1_399_999, 1_400_000, len(data):
            assert await reader.seek(offset) == offset
            few = await reader.read(3)
            assert data[offset:].startswith(few)
            assert len(few) in ((1, 2, 3) if offset < len(data) else (0,))
            assert few + await reader.read() == data[offset:]
    left = await file.truncate(700_000)
    assert 10 < left <= 700_000
    async with file.reader(left) as reader:
        assert await reader.read() == data[left:]
        await reader.seek(left - 1)
        with pytest.raises(PositionTruncatedError):
            await reader.read(1)


async def test_a_reader_waits_for_bytes_that_are_written(ns: Namespace) -> None:
    await ns.create_stream("s")
    file = ByteStream(ns.stream("s"))
    async with file.writer() as writer, file.reader(tail=True) as reader:
        reading = asyncio.ensure_future(reader.read(100))
        await writer.write(b"abc")
        async with asyncio.timeout(60):
            assert await reading == b"abc"
            await writer.write(b"def")
            assert await reader.read(2) == b"de"
            assert await reader.read(2) == b"f"
            assert reader.tell() == 6
