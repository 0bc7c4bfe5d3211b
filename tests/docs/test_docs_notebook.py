"""The notebook of ``examples/`` runs in Jupyter, and what it shows is helpful and short."""

from __future__ import annotations

import re
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from docs.pages import ROOT
from doubles.clusters import local_cluster
from quorumbook.sync.streams import Namespace

SHOWN_URI = "sqlite:///quorumbook-data/metadata.db"
#: What cells show, one after the other, where it is an object of ours.
SHOWN = [
    r"<BookKeeper sqlite:.*metadata\.db, open>",
    r"<LedgerWriter \d+, open, confirmed 2>",
    r"<LedgerReader \d+, closed, last add confirmed 2>",
    r"\[<Entry 0 of ledger \d+, 13 bytes, b'measurement 0'>,\n.*\n.*\]",
    r"<Stream temperatures>",
    r"<Record 0 at [\d.:]+, key b'00 h', 2 bytes, b'22'>",
    r"<Cursor notebook of temperatures at [\d.:]+>",
]


cluster = local_cluster(scope="module")


@pytest.mark.timeout(240)
def test_the_notebook_runs_in_jupyter_and_shows_each_object_in_a_line(cluster):
    notebook = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "outputs are not committed"
    for cell in notebook.cells:
        cell.source = cell.source.replace(SHOWN_URI, cluster.metadata_uri)
    NotebookClient(notebook, timeout=100).execute()
    shown = [
        output["data"]["text/plain"]
        for cell in notebook.cells if cell.cell_type == "code"
        for output in cell.outputs if output.output_type == "execute_result"
    ]  # fmt: skip
    for pattern, text in zip(SHOWN, shown, strict=False):
        assert re.fullmatch(pattern, text), text
    frame, rows = shown[len(SHOWN) :]
    assert re.search(r"count +24\.0\nmin +10\.0\nmax +22\.0", frame)
    assert rows == "[b'measurement 0', b'measurement 1', b'measurement 2']"


def test_the_api_works_in_the_repl_of_asyncio(cluster):
    typed = f"""
import quorumbook
bk = await quorumbook.connect({cluster.metadata_uri!r})
writer = await bk.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
await writer.append(b"typed")
writer
await writer.close()
reader = await bk.open_ledger(writer.id)
[entry.payload async for entry in reader.read()]
await bk.close()
bk
"""
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"], input=typed, capture_output=True, text=True,
        check=False, timeout=200,
    )  # fmt: skip
    shown = done.stdout + done.stderr
    assert "Traceback" not in shown, shown
    assert re.search(r"<LedgerWriter \d+, open, confirmed 0>", shown)
    assert "[b'typed']" in shown
    assert re.search(r"<BookKeeper sqlite:\S+, closed>", shown)


def test_everything_that_reads_and_writes_says_what_it_is_and_where_it_stands(cluster):
    with Namespace.open(cluster.metadata_uri, bind=True) as namespace:
        namespace.create_stream("shown", exist_ok=True)
        stream = namespace.stream("shown")
        with stream.writer() as writer:
            appended = writer.append(b"\x00" * 1000)
        with stream.reader(tail=False) as reader:
            record = next(reader)
            said = [namespace, namespace.client, stream, writer, reader, record, appended]
            for each in map(repr, said):
                assert len(each) <= 160, each
                assert " object at 0x" not in each
        assert repr(stream) == "<sync <Stream shown>>"
        assert re.fullmatch(r"<sync <StreamReader of shown at [\d.:]+>>", repr(reader))
        assert re.fullmatch(r"<Record 0 at [\d.:]+, 1000 bytes, b'(\\x00)+'…>", repr(record))


def test_a_client_shows_nothing_of_its_uri_that_may_be_secret():
    import quorumbook

    client = quorumbook.connect("etcd://h1:2379/ledgers?password=hunter2")
    assert "hunter2" not in repr(client)
