"""Traces, metrics and logs by OpenTelemetry; needs the extra ``otel``.

Nothing of it is in the way of a process that does not want it: ``instrument`` puts traced methods
in the place of the client's, ``uninstrument`` puts the client's own back, and no other module asks
whether there are traces.

    QuorumbookInstrumentor().instrument()   in a program that sets OpenTelemetry up itself
    opentelemetry-instrument python app.py  does both, by the entry point of this class
    OTEL_EXPORTER_OTLP_ENDPOINT=...         is all that a command or a task of Spark needs

Which calls have spans, and what these say, is ``spans``'s; metrics are ``metrics``'s; what
commands do with the environment is ``process``'s.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry import trace
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from quorumbook import __version__
from quorumbook.otel.spans import CLIENT_CALLS, Tracing, context_of, processing

__all__ = ["QuorumbookInstrumentor", "context_of", "processing"]


class QuorumbookInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Traces ledgers and streams of every client of this process.

    ``instrument`` takes, by keyword:

        tracer_provider  where spans go; the global one if not given
        propagate        whether records carry the context of their appender in the headers
                         ``traceparent`` and ``tracestate``, by which readers' spans link to it;
                         true if not given
    """

    _tracing: Tracing | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what must be installed besides: nothing."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        provider = kwargs.get("tracer_provider")
        tracer = trace.get_tracer("quorumbook", __version__, provider)
        self._tracing = Tracing(tracer, propagate=kwargs.get("propagate", True))
        self._tracing.put_into(CLIENT_CALLS)

    def _uninstrument(self, **kwargs: Any) -> None:
        tracing, self._tracing = self._tracing, None
        if tracing is not None:
            tracing.take_out()
