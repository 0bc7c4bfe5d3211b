"""Paths of everything, against the peer's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorumbook.errors import LedgerIdOverflowError, LocalProtocolError
from quorumbook.metadata.paths import LayoutKind, TreePaths, check_bookie_id

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "zookeeper.json").read_text())
PATHS = TreePaths("/ledgers")
KINDS = {
    "flat": LayoutKind.FLAT,
    "legacy_hierarchical": LayoutKind.LEGACY_HIERARCHICAL,
    "hierarchical": LayoutKind.HIERARCHICAL,
    "long_hierarchical": LayoutKind.LONG_HIERARCHICAL,
}


@pytest.mark.parametrize("vector", GOLDEN["paths_relative_to_ledgers_root"], ids=str)
def test_ledger_paths_are_the_peers(vector):
    ledger_id = vector["ledger_id"]
    for name, kind in KINDS.items():
        if vector[name] is None:
            with pytest.raises(LedgerIdOverflowError):
                PATHS.ledger(kind, ledger_id)
        else:
            assert PATHS.ledger(kind, ledger_id) == "/ledgers" + vector[name]
    assert PATHS.underreplicated(ledger_id) == vector["underreplicated"]
    assert PATHS.underreplicated_lock(ledger_id) == vector["underreplicated_lock"]


def test_there_were_vectors():
    assert len(GOLDEN["paths_relative_to_ledgers_root"]) == 20


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_an_id_out_of_range_has_no_path(ledger_id):
    for kind in LayoutKind:
        with pytest.raises(LocalProtocolError):
            PATHS.ledger(kind, ledger_id)
    for path in (PATHS.underreplicated, PATHS.underreplicated_lock):
        with pytest.raises(LocalProtocolError):
            path(ledger_id)


def test_another_root_moves_everything():
    paths = TreePaths("/bk/one")
    assert paths.ledger(LayoutKind.HIERARCHICAL, 1) == "/bk/one/00/0000/L0001"
    assert paths.cookie("b:1") == "/bk/one/cookies/b:1"
    assert paths.bookie("b:1", read_only=True) == "/bk/one/available/readonly/b:1"


@pytest.mark.parametrize(
    "bookie_id", ["192.0.2.1:3181", "host-a.example.com:1", "custom_id", "A.b"]
)
def test_a_bookie_id_is_text_of_the_allowed_characters(bookie_id):
    assert check_bookie_id(bookie_id) == bookie_id
    assert PATHS.bookie(bookie_id, read_only=False) == f"/ledgers/available/{bookie_id}"


@pytest.mark.parametrize("bookie_id", ["", "readonly", "a/b", "a b", "ä", "..", ".", "a\n", "a*"])
def test_another_bookie_id_is_refused(bookie_id):
    with pytest.raises(LocalProtocolError):
        check_bookie_id(bookie_id)
