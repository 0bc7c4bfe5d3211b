"""The peer's own bytes: index files of ledgers, and the RocksDB index of its other storage."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
import rocksdict

from quorumbook.env import Env
from quorumbook.errors import CorruptIndexError, ForeignDirectoryError
from quorumbook.storage.adoption import rocksdb
from quorumbook.storage.adoption.closing import close_entry_logs
from quorumbook.storage.adoption.give_back import locations_of
from quorumbook.storage.adoption.index_file import (
    IndexHeader,
    decode_header,
    encode_header,
    find_index_files,
    index_file_path,
    write_index_file,
)
from quorumbook.storage.adoption.peer_index import IndexFiles
from quorumbook.storage.adoption.rocksdb import RocksIndex, encode_ledger, write_databases
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import Index
from quorumbook.storage.states.state_file import StoredLedger

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "ondisk.json").read_text())
DISK = json.loads((Path(__file__).parents[2] / "golden" / "live_disk_sorted.json").read_text())


@pytest.mark.parametrize("golden", GOLDEN["index_file_headers"], ids=lambda g: str(g)[:60])
def test_golden_headers_of_index_files_are_read_and_written_exactly(golden):
    data = bytes.fromhex(golden["header_first_96_hex"]).ljust(1024, b"\0")
    header = decode_header(data, "x.idx")
    lac = golden["explicit_lac_hex"]
    if golden["header_version"] == 0:
        assert header == IndexHeader(header.master_key, golden["fenced"])
    else:
        assert header.is_fenced == golden["fenced"]
        assert header.explicit_lac == (bytes.fromhex(lac) if lac else None)
        assert encode_header(header) == data
    assert header.master_key == bytes.fromhex("149596625852f7fafc2c9cf0f9f7f3e5995206452b")[1:]


def test_golden_names_of_index_files():
    for golden in GOLDEN["index_file_names"]:
        assert index_file_path("/i", golden["ledger_id"]) == f"/i/{golden['index_file']}"


def test_index_files_of_a_running_peer_have_the_size_that_is_written(tmp_path):
    sizes = {
        Path(item["file"]).name: item["length"]
        for item in DISK["tree_after_clean_shutdown"]
        if item.get("file", "").endswith(".idx")
    }
    path = str(tmp_path / "3e8.idx")
    write_index_file(Env(), path, IndexHeader(b"k" * 20), [(0, array("q", [1028, 1073]))], 1)
    assert Path(path).stat().st_size == sizes["3e8.idx"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"BKLE", "is cut"),
        (b"NOPE" + bytes(1020), "not an index file"),
        (b"BKLE\0\0\0\2" + bytes(1016), "version 2"),
        (b"BKLE\0\0\0\1\0\0\4\0" + bytes(1012), "key of 1024"),
        (b"BKLE\0\0\0\1\0\0\0\0\0\0\0\0\0\0\4\0" + bytes(1004), "packet of 1024"),
        (b"BKLE\0\0\0\1\xff\xff\xff\xff" + bytes(1012), "key of -1"),
    ],
)
def test_damaged_headers_are_refused_with_their_place(data, reason):
    with pytest.raises(CorruptIndexError, match=reason):
        decode_header(data, "x.idx")


def test_what_is_written_is_read_again_with_its_holes(tmp_path):
    path = index_file_path(str(tmp_path), 0x12345)
    Path(path).parent.mkdir(parents=True)
    pieces = [(2, array("q", [5 << 32 | 1028, 0, 6 << 32 | 99])), (5000, array("q", [7]))]
    state = IndexHeader(b"key", is_fenced=True, explicit_lac=b"packet")
    write_index_file(Env(), path, state, pieces, 5000)
    index = IndexFiles(Env(), [str(tmp_path)])
    assert index.states == {
        0x12345: StoredLedger(0x12345, b"key", is_fenced=True, explicit_lac=b"packet")
    }
    assert list(index.locations(0x12345, 1, 5)) == [0, 5 << 32 | 1028, 0, 6 << 32 | 99, 0]
    assert list(index.locations(0x12345, 5000, 5001)) == [7, 0]
    assert list(index.locations(0x12345, 9_000_000, 9_000_001)) == [0, 0]
    assert index.count(0x12345) == 3
    index.close()


def test_a_relocated_copy_counts_only_where_the_file_is_gone(tmp_path):
    for number, name in ((1, "1.idx"), (1, "1.idx.rloc"), (2, "2.idx.rloc")):
        folder = tmp_path / "0" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(encode_header(IndexHeader(name.encode())))
    (tmp_path / "0" / "3").mkdir()
    (tmp_path / "0" / "3" / "3.idx").touch()  # made, and never written
    found = find_index_files(Env(), [str(tmp_path)])
    assert {ledger_id: Path(path).name for ledger_id, path in found.items()} == {
        1: "1.idx",
        2: "2.idx.rloc",
    }


def test_golden_rows_of_the_rocksdb_index_are_written_and_read(tmp_path):
    key = bytes(range(20))
    golden = {(row["db"], row["what"].partition(" ")[0]): row for row in
              GOLDEN["dbledgerstorage_rocksdb"]}  # fmt: skip
    assert golden
    values = [row for row in GOLDEN["dbledgerstorage_rocksdb"] if "LedgerData" in row["what"]]
    plain, full = (bytes.fromhex(row["hex"]) for row in values)
    fenced = StoredLedger(1, key, is_fenced=True, explicit_lac=b"\1\2\3")
    assert encode_ledger(fenced) == full
    # Whether "limbo: false" is written out makes no difference to a reader.
    assert encode_ledger(StoredLedger(1, key)) == plain + b"\x28\x00"
    states = [fenced, StoredLedger(1 << 32, key)]
    write_databases(str(tmp_path), states, [(1, 2, 1028), (1, 3, 1 << 32 | 1028), (1 << 32, 0, 9)])
    ledgers = rocksdict.Rdict(str(tmp_path / "ledgers"), rocksdict.Options(raw_mode=True))
    assert next(iter(ledgers.keys())) == bytes.fromhex("0000000000000001")
    ledgers.close()
    index = RocksIndex(Env(), str(tmp_path))
    assert index.states == {state.ledger_id: state for state in states}
    assert list(index.locations(1, 1, 4)) == [0, 1028, 1 << 32 | 1028, 0]
    assert (index.count(1), index.count(1 << 32), index.count(7)) == (2, 1, 0)
    index.close()


def test_the_peers_own_doubt_and_damaged_rows_are_kept_in_mind(tmp_path):
    write_databases(str(tmp_path), [], [])
    ledgers = rocksdict.Rdict(str(tmp_path / "ledgers"), rocksdict.Options(raw_mode=True))
    ledgers[bytes.fromhex("ffffffffffff1103")] = (1).to_bytes(8, "big")
    ledgers[(5).to_bytes(8, "big")] = b"\xff"
    ledgers.close()
    index = RocksIndex(Env(), str(tmp_path))
    assert "integrity check" in index.doubt
    assert list(index.damaged) == [5]
    index.close()


def test_without_the_extra_the_way_out_is_named(tmp_path, monkeypatch):
    write_databases(str(tmp_path), [], [])

    def missing(_name):
        raise ImportError

    monkeypatch.setattr(rocksdb, "import_module", missing)
    with pytest.raises(ForeignDirectoryError, match=r"quorumbook\[rocksdb\].*--without-index"):
        RocksIndex(Env(), str(tmp_path))


def test_locations_point_behind_the_size_fields():
    row = StoredRun(1, 10, 12, 3, 1024, 20)
    assert list(locations_of(row)) == [3 << 32 | 1028, 3 << 32 | 1052, 3 << 32 | 1076]
    spread = StoredRun(1, 10, 13, 3, 1024, [20, 0, 7, 9])
    assert list(locations_of(spread)) == [3 << 32 | 1028, 0, 3 << 32 | 1052, 3 << 32 | 1063]


def test_a_closed_log_has_the_golden_ledgers_map(tmp_path):
    golden = GOLDEN["entry_log"]
    body = bytes.fromhex(golden["after_header_hex"])
    header = bytes.fromhex(golden["header_first_32_hex"])
    map_at = int.from_bytes(header[8:16], "big")
    log = tmp_path / "0.log"
    # As a crash leaves it: no map, and a torn record at the end.
    log.write_bytes(header[:8].ljust(1024, b"\0") + body[: map_at - 1024] + b"\0\0\4\0torn")
    index = Index(str(tmp_path / "index"), create=True)
    index.commit(entry_logs=[(0, str(tmp_path))])
    for _ in range(2):
        close_entry_logs(Env(), index)
        assert log.read_bytes() == header.ljust(1024, b"\0") + body
    index.close()
    assert (tmp_path / "lastId").read_text() == "0\n"
