"""Secrets at rest and in errors: who may read the files, and what damaged metadata give away."""

from __future__ import annotations

import base64
import os
import stat
import traceback
from pathlib import Path
from typing import Any

import pytest
from security_harness import add_frames, secure_cluster

from quorumbook.errors import QuorumbookError
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.metadata_format import decode, encode
from quorumbook.protocol.digest import DigestType
from quorumbook.storage.index.files import copy_index
from quorumbook.streams.tier.manifest import Manifest, TierState

CANARY = b"canary-of-a-password"


def _metadata(format_version: int) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        fragments=(Fragment(0, ("127.0.0.1:3181",)),),
        digest_type=DigestType.CRC32C,
        password=CANARY,
        format_version=format_version,
    )


def _said(error: BaseException) -> str:
    chain = []
    found: BaseException | None = error
    while found is not None:
        chain += [str(found), repr(found), repr(vars(found))]
        found = found.__cause__
    return "\n".join([*chain, *traceback.format_exception(error)])


def _gives_nothing_away(read: Any, data: bytes) -> bool:
    """Tell whether damaged data were refused; their error must not show what is in them."""
    try:
        read(data)
    except QuorumbookError as error:
        said = _said(error)
        for form in (CANARY.decode(), base64.b64encode(CANARY).decode()[:20], CANARY.hex()):
            assert form not in said, said
        for start in range(4):
            middle = base64.b64encode(CANARY[start:]).decode()[:16]
            assert middle not in said, said
        return True
    return False


def _damaged(data: bytes) -> list[bytes]:
    cut = [data[:position] for position in range(len(data))]
    return [
        *cut,
        *(data[:p] + bytes([data[p] ^ 0x55]) + data[p + 1 :] for p in range(len(data))),
        *(data[:p] + b'"' + data[p:] for p in range(len(data))),
    ]


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("format_version", [2, 3])
def test_damaged_metadata_of_a_ledger_do_not_give_its_password_away(format_version: int) -> None:
    whole = encode(_metadata(format_version))
    refused = [_gives_nothing_away(lambda data: decode(7, data), each) for each in _damaged(whole)]
    assert sum(refused) > len(whole)


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_a_damaged_list_of_a_segments_files_does_not_give_a_password_away() -> None:
    whole = Manifest(state=TierState.LIVE, token="t", location="/x", ledger=_metadata(3)).encode()
    assert base64.b64encode(encode(_metadata(3))) in whole
    refused = [_gives_nothing_away(Manifest.decode, each) for each in _damaged(whole)]
    assert sum(refused) > len(whole)


async def test_nobody_else_reads_what_a_bookie_keeps(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        async with secure_cluster(tmp_path) as cluster:
            stranger = await cluster.raw()
            await stranger.ask(add_frames(1, 1))
            stranger.close()
            _check_modes(tmp_path)
        indexes = [*tmp_path.rglob("index.sqlite")]
        assert indexes
        for path in (*indexes, *tmp_path.rglob("index.sqlite-*")):
            path.chmod(0o644)  # as earlier states of this release left it
        copy = copy_index(str(indexes[0]), str(tmp_path))
        assert stat.S_IMODE(os.stat(copy).st_mode) == 0o600
        os.unlink(copy)
        await _open_again(indexes[0])
    finally:
        os.umask(before)


async def _open_again(index: Path) -> None:
    from quorumbook.storage.index.rows import connect

    connection = connect(str(index), 1024)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE more (x)")
    _check_modes(index.parent)
    connection.close()


def _check_modes(root: Path) -> None:
    found = {path: path.stat().st_mode & 0o077 for path in root.rglob("*") if path.is_file()}
    assert [path for path in found if path.name == "index.sqlite"]
    assert {path: mode for path, mode in found.items() if mode} == {}
