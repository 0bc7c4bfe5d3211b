"""What a command sends by OpenTelemetry, where the environment says where to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def start_telemetry() -> None:
    """Send traces, metrics and logs of this command, if the environment says where to."""
    from quorumbook.env.log import is_telemetry_wanted

    if not is_telemetry_wanted():
        return
    try:
        from quorumbook.otel.process import start
    except ImportError:
        print(
            "quorumbook: nothing is sent to OpenTelemetry: pip install 'quorumbook[otel]'",
            file=sys.stderr,
        )
        return
    context = click.get_current_context(silent=True)
    words = context.command_path.split() if context is not None else []
    start("-".join(["quorumbook", *words[1:2]]))


def send_metrics(families: Callable[[], Iterable[Metric]]) -> None:
    """Send a server's own numbers, too, if anything is sent; called on its loop."""
    if "quorumbook.otel.process" in sys.modules:
        from quorumbook.otel.process import meter

        meter(families)
