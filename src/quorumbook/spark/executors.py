"""Looks whether Spark's executors run what the driver runs, before any real task does.

Planner and tasks check it once more for themselves, each task its own executor: one may come later.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from quorumbook import __version__
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HOW = (
    "install the same everywhere, or send it as an archive (docs/spark.md); PYSPARK_PYTHON, or "
    "spark.pyspark.python, names the interpreter"
)
#: What Spark says of workers that cannot start, somewhere in pages of traces.
_REASONS = (r"Python in worker has different version[^\n]*", r"Cannot run program[^\n]*")


def check_executors(spark: SparkSession) -> None:
    """Raise ConfigError unless every executor has the driver's Python and package; runs a job.

    Args:
        spark: A session that is not one of Spark Connect.
    """

    # Not a function of the module: it goes to executors by value, where we may be missing.
    def look(_: int) -> tuple[str, str, str]:
        import importlib  # noqa: PLC0415
        import os  # noqa: PLC0415
        import sys  # noqa: PLC0415

        try:
            for name in ("pandas", "pyarrow"):
                importlib.import_module(name)
            release = importlib.import_module("quorumbook").__version__
        except ImportError as error:
            release = f"not usable: {error}"
        return os.uname().nodename, "{}.{}".format(*sys.version_info), release

    context = spark.sparkContext
    slots = context.defaultParallelism
    try:
        found = {*context.parallelize(range(slots), slots).map(look).collect()}
    except Exception as error:
        text = str(error)
        known = (re.search(reason, text) for reason in _REASONS)
        reason = next((match[0] for match in known if match), text[:500])
        raise ConfigError(f"the executors do not run this Python: {reason}; {_HOW}") from error
    own = "{}.{}".format(*sys.version_info)
    for host, python, release in sorted(found):
        if (python, release) != (own, __version__):
            raise ConfigError(
                f"the driver has Python {own} with quorumbook {__version__}, executor {host} "
                f"Python {python} with quorumbook {release}: {_HOW}"
            )
