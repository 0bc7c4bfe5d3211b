"""What a pipeline tells that was run for a while, without Spark."""

from __future__ import annotations

from typing import Any

from quorumbook.spark.pipeline.declaration import parse_pipeline
from quorumbook.spark.pipeline.numbers import StepNumbers
from quorumbook.spark.pipeline.telling import told

FILE = """
name = "orders <eu>"
checkpoints = "checkpoints"

[[step]]
name = "clean"
from = ["orders/eu"]
decode = true
dead-letters = "orders/bad"
to = "orders/clean"

[[step]]
name = "lake"
from = ["orders/clean", "jobs"]
to = "parquet:/data/archive"
"""


def told_orders(began_at_ms: int = 0, *, is_over: bool = False) -> dict[str, Any]:
    """Return what a pipeline of two steps tells: one runs, one was started again."""
    pipeline = parse_pipeline(FILE, "/etc/pipelines")
    clean = StepNumbers(
        state="running", commits=1_204, records_read=120_400, rows_written=120_398,
        dead_letters=2, input_rate=1_000.0, rate=4_000.0, batch_s=1.5, lag_entries=7,
        lag_bytes=70_000, lag_s=3.0, lag_by_stream={"orders/eu": 7}, segments=12,
        segments_merged=1_192,
    )  # fmt: skip
    lake = StepNumbers(
        state="waiting", commits=3, records_read=300, rows_written=300, restarts=2,
        lag_entries=40, lag_bytes=400_000, lag_s=61.0,
        lag_by_stream={"jobs/p1": 30, "jobs/p0": 10}, segments_retired=4,
        error="[QUORUMBOOK_DATA_LOSS] ledger 7 is <gone> (quorumbook help data-loss)",
    )  # fmt: skip
    numbers = {"clean": clean, "lake": lake}
    return told(pipeline, numbers, began_at_ms=began_at_ms, is_over=is_over)
