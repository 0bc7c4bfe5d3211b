"""A collector of OpenTelemetry that keeps what processes send it over HTTP."""

from __future__ import annotations

import contextlib
import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_KINDS = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Collector:
    """Listens on loopback until ``stop``.

    Args:
        pause_s: How long it lets each byte of an answer wait; None: for ever.
    """

    def __init__(self, pause_s: float | None = 0.0) -> None:
        self.requests: list[Any] = []
        self._is_over = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.requests.append(_KINDS[self.path].FromString(body))
                collector.answer(self.wfile)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._pause_s = pause_s
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, file: IO[bytes]) -> None:
        """Answer a request, as slowly as it answers any."""
        with contextlib.suppress(OSError):
            if self._pause_s == 0:
                file.write(_ANSWER)
                return
            for byte in _ANSWER:
                if self._is_over.wait(self._pause_s):
                    return
                file.write(bytes([byte]))
                file.flush()

    def environment(self, **further: str) -> dict[str, str]:
        """Return the variables of a process that sends here."""
        port = self._server.server_address[1]
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **further}

    @property
    def spans(self) -> list[tuple[str, Any]]:
        """Name of the service, and span."""
        return [
            (_service(resource), span)
            for request in list(self.requests)
            for resource in getattr(request, "resource_spans", ())
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> list[tuple[str, Any]]:
        """Name of the service, and metric."""
        return [
            (_service(resource), metric)
            for request in list(self.requests)
            for resource in getattr(request, "resource_metrics", ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    @property
    def log_lines(self) -> list[str]:
        """What was logged."""
        return [
            record.body.string_value
            for request in list(self.requests)
            for resource in getattr(request, "resource_logs", ())
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def stop(self) -> None:
        """Let go of the port."""
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _service(resource: Any) -> str:
    return next(
        each.value.string_value
        for each in resource.resource.attributes
        if each.key == "service.name"
    )
