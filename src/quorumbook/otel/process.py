"""OpenTelemetry for a command of ours, or a task of Spark, by the environment alone.

The variables are those of OpenTelemetry's specification; ``OTEL_EXPORTER_OTLP_ENDPOINT`` is all
that is needed.  Where ``opentelemetry-instrument`` has set everything up, nothing is done here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from platform import node

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.instrumentation.auto_instrumentation import initialize
from opentelemetry.trace import Span
from opentelemetry.util.types import AttributeValue

from quorumbook import __version__
from quorumbook.otel import QuorumbookInstrumentor
from quorumbook.otel.metrics import Families, MeteredFamilies
from quorumbook.otel.spans import environment_carrier

_DEFAULTS = {
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    "OTEL_PYTHON_LOGGING_AUTO_INSTRUMENTATION_ENABLED": "true",
    # A collector that is away must not keep a command from ending.
    "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
}


def start(service: str) -> None:
    """Send traces, metrics and logs where the environment says.

    Args:
        service: What this process is, unless ``OTEL_SERVICE_NAME`` says it.
    """
    if not QuorumbookInstrumentor().is_instrumented_by_opentelemetry:
        ours = {**_DEFAULTS, "OTEL_SERVICE_NAME": service}
        ours["OTEL_RESOURCE_ATTRIBUTES"] = f"service.instance.id={node()}-{os.getpid()}"
        if find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None:
            del ours["OTEL_EXPORTER_OTLP_PROTOCOL"]
        # For a moment only: a child is another service.
        missing = {name: value for name, value in ours.items() if name not in os.environ}
        os.environ.update(missing)
        try:
            initialize()
        finally:
            for name in missing:
                del os.environ[name]
    context.attach(propagate.extract(environment_carrier()))


def meter(families: Families) -> MeteredFamilies:
    """Have the metrics of a process sent, asked on the running event loop."""
    made = metrics.get_meter("quorumbook", __version__)
    return MeteredFamilies(made, families, asyncio.get_running_loop())


def span_of(name: str, attributes: Mapping[str, AttributeValue]) -> AbstractContextManager[Span]:
    """Return the span of all that this process does for a while, as a context manager."""
    tracer = trace.get_tracer("quorumbook", __version__)
    return tracer.start_as_current_span(name, attributes=attributes)


def flush(timeout_ms: int) -> None:
    """Send what waits: a process of Spark may be killed as soon as its task is over."""
    force = getattr(trace.get_tracer_provider(), "force_flush", None)
    if force is not None:
        force(timeout_ms)
