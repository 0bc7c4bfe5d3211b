"""``quorumbook spark``: jobs over a whole cluster, on Apache Spark.

What every job takes and how it ends is in ``spark_run``; what each one does is in
``quorumbook.spark.jobs``.
"""

from __future__ import annotations

import click

from quorumbook.cli.command import Commands
from quorumbook.cli.spark.checks import audit, fsck_meta, gc_orphans, usage
from quorumbook.cli.spark.compaction import compact_keys, compact_segments
from quorumbook.cli.spark.data import export, ingest
from quorumbook.cli.spark.demo import demo
from quorumbook.cli.spark.lake import lake_changes, lake_sink
from quorumbook.cli.spark.moving import decommission, rebalance, rereplicate
from quorumbook.cli.spark.pipeline import pipeline
from quorumbook.cli.spark.queries import analytics, transform
from quorumbook.cli.spark.register import register
from quorumbook.cli.spark.template import template
from quorumbook.cli.spark.tier import offload, restore, tier_verify
from quorumbook.cli.spark.xcluster import xcluster


@click.group(cls=Commands)
def spark() -> None:
    """Jobs over a whole cluster, on Apache Spark: exit code 0 clean, 1 error, 2 findings."""


_JOBS = (
    audit, usage, fsck_meta, export, offload, restore, tier_verify, rereplicate, decommission,
    rebalance, compact_segments, compact_keys, lake_sink, lake_changes, xcluster, gc_orphans,
    ingest, transform, analytics, pipeline, demo, template, register,
)  # fmt: skip
for _job in _JOBS:
    spark.add_command(_job)
