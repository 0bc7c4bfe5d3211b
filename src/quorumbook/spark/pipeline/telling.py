"""What a pipeline tells of itself, for the console and whoever reads the metadata; pure.

A pipeline has ``name``, ``state`` (running, ended), ``began_at_ms``, ``told_every_s``, ``host``,
``process_id``, ``is_once`` and ``steps``, in the order in which they read each other.  A step has
what the file says of it (``step``, ``sources``, ``target``, ``dead_letter_stream``) and its numbers
(``StepNumbers``).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from quorumbook.spark.pipeline.declaration import Pipeline
from quorumbook.spark.pipeline.numbers import StepNumbers

#: A pipeline tells so often.
EVERY_S = 5.0


def told(
    pipeline: Pipeline,
    numbers: Mapping[str, StepNumbers],
    *,
    began_at_ms: int,
    is_once: bool = False,
    is_over: bool = False,
) -> dict[str, Any]:
    """Return what a pipeline tells.

    Args:
        pipeline: The pipeline.
        numbers: What is known of each step, by name.
        began_at_ms: When its process began with it.
        is_once: It reads what there is, and ends.
        is_over: No step goes on.
    """
    return {
        "name": pipeline.whole.name,
        "state": "ended" if is_over else "running",
        "began_at_ms": began_at_ms,
        "told_every_s": EVERY_S,
        "is_once": is_once,
        "host": socket.gethostname(),
        "process_id": os.getpid(),
        "steps": [
            {
                "step": step.name,
                "sources": list(step.sources),
                "target": step.target,
                "dead_letter_stream": step.dead_letters or None,
                **_row(numbers[step.name], is_over=is_over),
            }
            for step in pipeline.steps
        ],
    }


def _row(found: StepNumbers, *, is_over: bool) -> dict[str, Any]:
    names = (each.name for each in fields(found) if not each.name.startswith("_"))
    row = {name: getattr(found, name) for name in names if name != "scans"}
    if is_over and found.state in ("running", "waiting"):
        row["state"] = "stopped"
    if row["state"] != "running":
        row["input_rate"] = row["rate"] = 0.0
    return {**row, "lag_by_stream": dict(found.lag_by_stream)}
