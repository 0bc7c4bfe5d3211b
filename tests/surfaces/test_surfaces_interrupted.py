"""^C at a command that waits for bookies ends it, and says what became of what it was given."""

from __future__ import annotations

import signal

import pytest

from quorumbook.testing import LocalCluster
from surfaces.conftest import CommandLine


@pytest.mark.parametrize("partitions", [(), ("--partitions", 2)])
def test_ctrl_c_at_writing_without_bookies_says_what_is_not_acknowledged(tmp_path, partitions):
    with LocalCluster(3, processes=True) as cluster:
        quorumbook = CommandLine(cluster.metadata_uri, str(tmp_path))
        quorumbook("stream", "create", "typed", *partitions)
        tail = ("stream", "tail", "typed", "--from", "earliest", "--count", 1)
        with (
            quorumbook.running(*tail) as tail,
            quorumbook.running(
                "stream", "write", "typed", *(("--partition", 0) if partitions else ())
            ) as writer,
        ):
            writer.stdin.write(b"one\n")
            writer.stdin.flush()
            assert tail.wait(60) == 0
            for bookie in cluster.bookie_ids[:2]:
                cluster.stop(bookie)
            writer.stdin.write(b"two\nthree\n")
            writer.stdin.flush()
            while b"trying again" not in (line := writer.stderr.readline()):
                assert line
            writer.send_signal(signal.SIGINT)
            # It used to wait for bookies until the client gave up, most of a minute.
            _, err = writer.communicate(timeout=30)
    assert writer.returncode == 130
    assert b"1 record in stream typed" in err
    assert b"2 more records not acknowledged when this ended" in err
