"""What one task is told: everything that ``read`` needs, since it sees no state of its planner.

No secret is in it: Spark shows partitions in its logs.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import InputPartition

from quorumbook import __version__
from quorumbook.errors import ConfigError


class Task(InputPartition):
    """One task's work, planned for one cluster by one release."""

    def __init__(self, instance_id: str, work: Any) -> None:
        """Take what is to be done.

        Args:
            instance_id: The cluster's.
            work: What the reader's ``read`` understands; pickled.
        """
        super().__init__((__version__, instance_id, work))

    def work_for(self, instance_id: str) -> Any:
        """Return the work.

        Raises:
            ConfigError: another cluster is behind the URI here.
        """
        planned_for = self.value[1]
        if planned_for != instance_id:
            raise ConfigError(
                f"this was planned for cluster {planned_for}, but on this executor the metadata "
                f"URI leads to cluster {instance_id}: give one that leads to the same from "
                "everywhere"
            )
        return self.value[2]

    def check_release(self) -> None:
        """Raise ConfigError if another release of the package planned it."""
        planned_by = self.value[0]
        if planned_by != __version__:
            raise ConfigError(
                f"the driver has quorumbook {planned_by}, this executor {__version__}: install the "
                "same everywhere"
            )
