"""A schema registry for tests: what Confluent's answers to the few requests that we make."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Registered:
    """A version of a subject."""

    registry_id: int
    kind: str
    schema: str
    #: A Protobuf file's descriptor in base64.
    serialized: str = ""
    references: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class SchemaRegistryDouble:
    """Subjects with their versions by number, and the requests that came."""

    url: str = ""
    subjects: dict[str, dict[int, Registered]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    #: Answers in place of its own, by path: a status, headers, and bytes in pieces.
    instead: dict[str, tuple[int, dict[str, str], Callable[[], Iterator[bytes]]]] = field(
        default_factory=dict
    )

    def answer(self, path: str) -> tuple[int, Any]:
        parts = [urllib.parse.unquote(each) for each in path.partition("?")[0].split("/")[1:]]
        if parts[0] == "subjects" and parts[2:3] == ["versions"]:
            versions = self.subjects.get(parts[1])
            if versions is None:
                return 404, {"error_code": 40401, "message": f"Subject '{parts[1]}' not found."}
            if len(parts) == 3:
                return 200, sorted(versions)
            found = versions.get(int(parts[3]))
            if found is None:
                return 404, {"error_code": 40402, "message": f"Version {parts[3]} not found."}
            said: dict[str, Any] = {
                "subject": parts[1], "version": int(parts[3]), "id": found.registry_id,
                "schema": found.schema,
            }  # fmt: skip
            if found.kind != "AVRO":
                said["schemaType"] = found.kind
            return 200, said | ({"references": found.references} if found.references else {})
        if parts[:2] == ["schemas", "ids"]:
            for versions in self.subjects.values():
                for found in versions.values():
                    if found.registry_id == int(parts[2]):
                        is_serialized = path.endswith("?format=serialized")
                        return 200, {"schema": found.serialized if is_serialized else found.schema}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def schema_registry() -> Iterator[SchemaRegistryDouble]:
    """Serve one on this machine."""
    double = SchemaRegistryDouble()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            double.requests.append((self.path, self.headers.get("Authorization")))
            if self.path in double.instead:
                status, headers, pieces = double.instead[self.path]
            else:
                status, said = double.answer(self.path)
                headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}

                def pieces() -> Iterator[bytes]:
                    yield json.dumps(said).encode()

            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for piece in pieces():
                    self.wfile.write(piece)
            except OSError:
                return  # whoever asked has gone

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    double.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
