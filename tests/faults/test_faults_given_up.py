"""A ledger whose bookies all lost the end of their journals: stuck until it is given up."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from doubles.waiting import until
from doubles.warm_command import run_command
from quorumbook.errors import LedgerRecoveryError
from quorumbook.testing import LocalCluster


def _recover(uri: str, ledger_id: int, *options: str) -> subprocess.CompletedProcess[bytes]:
    words = ("ledger", "recover", ledger_id, *options, "--metadata", uri, "--output", "json")
    return run_command(*words)


def _journal(bookie: Path) -> Path:
    (path,) = bookie.glob("journal/current/*.txn")
    return path


def _damage_last_group(bookie: Path, wanted: bytes) -> None:
    """Turn a bit of the last entry in the journal, which was synced and acknowledged."""
    path = _journal(bookie)
    data = bytearray(path.read_bytes())
    data[data.rindex(wanted)] ^= 1
    path.write_bytes(data)


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_r22_a_ledger_that_all_bookies_lost_the_end_of_is_given_up_on_an_operators_word(
    tmp_path: Path,
) -> None:
    bookies = [tmp_path / f"bookie-{number}" for number in (1, 2, 3)]
    last = b"entry number 9"
    async with LocalCluster(bookies=3, data_dir=str(tmp_path), processes=True) as cluster:
        # The last add confirmed would be another group behind that of the last entry.
        async with cluster.connect(lac_delay_s=60) as writing:
            writer = await writing.create_ledger()
            for number in range(10):
                await writer.append(b"entry number %d" % number)
            for bookie in bookies:
                # The acknowledgement of two is enough for the writer.
                await until(lambda b=bookie: last in _journal(b).read_bytes(), "the third replica")
            await asyncio.gather(*map(cluster.kill, cluster.bookie_ids))
            await writer.abort()
        for bookie in bookies:
            _damage_last_group(bookie, last)
        for bookie_id in cluster.bookie_ids:
            await cluster.restart(bookie_id)
        async with cluster.connect() as reading:
            with pytest.raises(LedgerRecoveryError):
                await reading.open_ledger(writer.id)
            uri = cluster.metadata_uri
            said = await asyncio.to_thread(_recover, uri, writer.id, "--accept-loss")
            assert said.returncode == 2
            assert b"entry 9 can be neither read nor denied" in said.stderr
            assert b"gives up" in said.stderr
            assert not (await reading.ledger_metadata(writer.id)).is_closed
            done = await asyncio.to_thread(_recover, uri, writer.id, "--accept-loss", "--yes")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["given_up_from"] == 9
            async with reading.open_ledger(writer.id) as reader:
                payloads = [entry.payload async for entry in reader.read(0)]
            assert payloads == [b"entry number %d" % number for number in range(9)]
