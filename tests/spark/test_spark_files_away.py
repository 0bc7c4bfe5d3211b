"""Streams whose files are out of reach: nothing is lost silently, and there is a way out."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest
from spark_helpers import in_namespace

from quorumbook.cli.main import main
from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.streams import Namespace, SequenceId
from quorumbook.streams.errors import FilesUnavailableError
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier import moving
from quorumbook.streams.tier.moving import SegmentInTier
from quorumbook.streams.tier.nodes import TierNodes

NAME = "eu/orders"


class Away:
    """A stream of four segments of ten records; the first two are in files alone."""

    def __init__(self, cluster, files):
        self.cluster, self.files = cluster, files
        self.path = f"/away-{uuid4().hex[:8]}"
        asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#{self.path}"))
        self.ledgers = self.run(self._write)
        self.before = self.run(self.tree)

    def run(self, work):
        return in_namespace(self.cluster, self.path, work)

    async def _write(self, namespace):
        await namespace.create_stream(NAME)
        stream = namespace.stream(NAME)
        for number in range(4):
            async with stream.writer() as writer:
                await writer.append_batch([b"%d" % n for n in range(10 * number, 10 * number + 10)])
        segments = await stream.segments()
        for each in segments[:2]:
            segment = SegmentInTier(context=stream_context(stream), metadata=each.metadata)
            await moving.offload(segment, self.files.place)
            assert await moving.delete_copy(segment, delay_s=0.0)
        return [each.metadata.ledger_id for each in segments]

    async def tree(self, namespace):
        """Return the stream's nodes, with what is in them."""
        nodes = stream_context(namespace.stream(NAME)).nodes

        async def walk(path):
            found = {path: (await nodes.store.get(path)).data}
            for name in await nodes.store.children(path):
                if not name.startswith("member_"):
                    found |= await walk(f"{path}/{name}")
            return found

        return await walk(nodes.paths.stream)

    async def locations(self, namespace):
        tier = TierNodes(stream_context(namespace.stream(NAME)).nodes)
        return [(await tier.read(n)).manifest.location for n in await tier.numbers()]

    async def ledgers_left(self, namespace):
        left = []
        for ledger_id in self.ledgers:
            try:
                await namespace.client.ledger_metadata(ledger_id)
                left.append(ledger_id)
            except NoSuchLedgerInMetadataError:
                pass
        return left

    async def read(self, namespace):
        async with namespace.stream(NAME).reader(tail=False, on_truncated="skip") as reader:
            return [int(record.payload) async for record in reader]

    def command(self, *words):
        where = ["--metadata", self.cluster.metadata_uri, "--namespace", self.path]
        return main(["stream", *words, *where])


class InBucket:
    """Files in a bucket that can be taken away."""

    def __init__(self, bucket):
        self.bucket, self.place = bucket, bucket.uri("tier")
        self._kept = {}

    def take_away(self):
        self._kept = self.bucket.take_away()

    def bring_back(self):
        self.bucket.bring_back(self._kept)

    def left(self):
        return self.bucket.objects()


class InDirectory:
    """Files in a file system that can be unmounted."""

    def __init__(self, directory):
        self._mounted, self._away = directory / "mnt", directory / "away"
        self._mounted.mkdir()
        self.place = str(self._mounted / "tier")

    def take_away(self):
        self._mounted.rename(self._away)
        self._mounted.mkdir()

    def bring_back(self):
        self._mounted.rmdir()
        self._away.rename(self._mounted)

    def left(self):
        return [path for path in self._mounted.rglob("*") if path.is_file()]


@pytest.fixture(params=[InBucket, InDirectory])
def away(request, cluster, tmp_path):
    if request.param is InDirectory:
        return Away(cluster, InDirectory(tmp_path))
    return Away(cluster, InBucket(request.getfixturevalue("bucket")))


def test_a_stream_whose_files_are_away_is_deleted_whole_or_not_at_all(away, capsys):
    away.files.take_away()
    before = away.run(away.tree)
    with pytest.raises(FilesUnavailableError, match="--forget-files"):
        away.run(lambda ns: ns.delete_stream(NAME))
    assert away.run(away.tree) == before
    assert away.run(away.ledgers_left) == away.ledgers[2:]
    assert away.command("delete", NAME, "--yes") == 4
    told = capsys.readouterr().err
    assert away.run(away.locations)[0].rpartition("/")[0] in told
    # What was not deleted is there when the files are.
    away.files.bring_back()
    assert away.run(away.read) == [*range(40)]
    assert away.run(lambda ns: ns.delete_stream(NAME)) == []
    assert (away.files.left(), away.run(away.ledgers_left)) == ([], [])


def test_somebody_may_forget_the_files_of_a_stream_and_is_told_where_they_may_be(away, capsys):
    locations = away.run(away.locations)
    away.files.take_away()
    assert away.command("delete", NAME, "--yes", "--forget-files") == 0
    told = capsys.readouterr().err
    assert all(f"files may be left in {location};" in told for location in locations)
    assert away.run(away.ledgers_left) == []
    assert away.run(lambda ns: stream_context(ns.stream(NAME)).nodes.exists()) is False
    away.files.bring_back()
    assert len(away.files.left()) == 2
    # Of a stream whose files are there nothing is forgotten.
    away.ledgers = away.run(away._write)
    assert away.run(lambda ns: ns.delete_stream(NAME, forget_files=True)) == []
    assert len(away.files.left()) == 2


@pytest.mark.parametrize("forgets", [False, True])
def test_a_stream_whose_files_are_away_is_truncated(away, capsys, forgets):
    locations = away.run(away.locations)
    away.files.take_away()
    away.run(lambda ns: ns.stream(NAME).truncate(SequenceId(30)))
    assert away.run(away.read) == [*range(30, 40)]
    if not forgets:
        # Bookies give back what they hold, and the lists of files stay.
        assert away.command("retention", NAME) == 4
        assert "--forget-files" in capsys.readouterr().err
        assert away.run(away.ledgers_left) == away.ledgers[3:]
        assert away.run(away.locations) == locations
        assert away.run(away.read) == [*range(30, 40)]
        away.files.bring_back()
        assert away.command("retention", NAME) == 0
        assert away.files.left() == []
    else:
        assert away.command("retention", NAME, "--forget-files", "-o", "json") == 0
        out, told = capsys.readouterr()
        assert [row["segment"] for row in json.loads(out)] == [1, 2, 3]
        assert all(f"files may be left in {location};" in told for location in locations)
        away.files.bring_back()
        assert len(away.files.left()) == 2
    assert away.run(away.locations) == []
    assert away.run(away.ledgers_left) == away.ledgers[3:]
    assert away.run(away.read) == [*range(30, 40)]


def test_a_copy_that_was_interrupted_keeps_a_stream_only_if_its_bucket_is_away(
    cluster, tmp_path, bucket
):
    away = Away(cluster, InDirectory(tmp_path))

    async def begin(namespace, number, place):
        stream = namespace.stream(NAME)
        found = (await stream.segments())[number].metadata
        await moving.offload(SegmentInTier(context=stream_context(stream), metadata=found), place)

    def interrupted(number, place):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(moving, "_write_parts", killed)
            with pytest.raises(asyncio.CancelledError):
                away.run(lambda ns: begin(ns, number, place))

    interrupted(2, str(tmp_path / "none" / "tier"))
    interrupted(3, bucket.uri("tier"))
    contents = bucket.take_away()
    before = away.run(away.tree)
    with pytest.raises(FilesUnavailableError, match="no bucket"):
        away.run(lambda ns: ns.delete_stream(NAME))
    assert away.run(away.tree) == before
    assert away.run(away.ledgers_left) == away.ledgers[2:]
    bucket.bring_back(contents)
    assert away.run(lambda ns: ns.delete_stream(NAME)) == []
    assert away.files.left() == []


async def killed(*_):
    raise asyncio.CancelledError
