"""Files of a cluster over WebHDFS, served by a thread of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import quorumbook
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer
from quorumbook.loop_thread import LoopThread


@contextlib.contextmanager
def file_server(metadata_uri: str, token_file: str = "") -> Iterator[str]:
    """Serve a cluster's files; the address for Hadoop's clients."""
    service = Service(
        ServiceOptions(
            metadata_uri, connect=lambda: quorumbook.connect(metadata_uri), token_file=token_file
        )
    )
    server = AdminServer(AdminOptions(port=0, files=True, token_file=token_file), service)
    thread = LoopThread()
    try:
        thread.run(server.start())
        yield f"web{server.url.replace('http', 'hdfs')}"
    finally:
        thread.run(server.stop())
        thread.stop()
