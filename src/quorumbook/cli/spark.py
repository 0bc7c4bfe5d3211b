"""``quorumbook spark``: jobs over a whole cluster, on Apache Spark.

What every job takes and how it ends is in ``spark_run``; what each one does is in
``quorumbook.spark.jobs``.
"""

from __future__ import annotations

import click

from quorumbook.cli.spark_checks import audit, fsck_meta, gc_orphans, usage
from quorumbook.cli.spark_compaction import compact_keys, compact_segments
from quorumbook.cli.spark_data import export, ingest
from quorumbook.cli.spark_demo import demo
from quorumbook.cli.spark_lake import lake_sink
from quorumbook.cli.spark_moving import decommission, rebalance, rereplicate
from quorumbook.cli.spark_queries import analytics, transform
from quorumbook.cli.spark_template import template
from quorumbook.cli.spark_tier import offload, restore, tier_verify
from quorumbook.cli.spark_xcluster import xcluster


@click.group()
def spark() -> None:
    """Jobs over a whole cluster, on Apache Spark: exit code 0 clean, 1 error, 2 findings."""


_JOBS = (
    audit, usage, fsck_meta, export, offload, restore, tier_verify, rereplicate, decommission,
    rebalance, compact_segments, compact_keys, lake_sink, xcluster, gc_orphans, ingest, transform,
    analytics, demo, template,
)  # fmt: skip
for _job in _JOBS:
    spark.add_command(_job)
