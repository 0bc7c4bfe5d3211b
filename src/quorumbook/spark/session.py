"""Makes a Spark session that suits: Python of the workers, time zone, sizes.

Spark starts ``python3`` from the path for its workers whatever runs the driver, which is the first
thing that goes wrong; and it says little about a Java that is missing.  Both are looked at here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from quorumbook.errors import ConfigError
from quorumbook.spark.executors import check_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA = 17
_CHECK = (
    "import sys, pandas, pyarrow, pyspark, quorumbook; "
    "print(sys.version_info[:2], quorumbook.__version__, pandas.__version__.split('.')[0])"
)
#: What holds unless the caller says otherwise.
_CONFIGURATION: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # Spark's own default, and what plug-ins are made with, which may be a secret: plans of views
    # and tables show the options.
    "spark.sql.redaction.options.regex": "(?i)url|auth_settings",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 * 1024 * 1024),
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
#: What a session that is made here has besides, and a Spark Connect server has of its own.
_OWN_CONFIGURATION: Mapping[str, str] = {
    # `bk.ledgers` is a global temporary view.
    "spark.sql.globalTempDatabase": "bk",
    # Workers take pieces of memory of some MiB again and again.  The C library would give each
    # back to the system, which has to clear its pages anew then: a tenth of their processor time.
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 * 1024 * 1024),
}

#: Of a stream that SQL reads and writes: what both have, and where a record is.
_STREAM_COLUMNS = (
    "(partition INT, seq BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>)"
)


def spark_session(
    app_name: str = "quorumbook",
    *,
    master: str | None = None,
    configuration: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session, made if there is none yet, that this thread can write by.

    Args:
        app_name: What Spark's pages call it.
        master: Where it runs; as Spark is configured, else on this machine, if not given.
            ``sc://HOST:PORT`` is a Spark Connect server, which needs no Java here.
        configuration: Options of Spark; they win over ours.

    Raises:
        ConfigError: Java or a Python package is missing or of a version that does not go, here or
            on an executor.
    """
    check_environment(master)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - checked first

    had_one = SparkSession.getActiveSession() is not None
    builder = SparkSession.builder.appName(app_name)
    values = {**_CONFIGURATION, **(configuration or {})}
    if is_remote(master):
        builder = builder.remote(master)
    else:
        values = {**_OWN_CONFIGURATION, **values}
        if master is not None:
            builder = builder.master(master)
    for key, value in values.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    activate(session)
    if not had_one and not _is_checked_otherwise(session):
        check_executors(session)
    return session


def activate(session: SparkSession) -> None:
    """Have a session's writes find the format ``quorumbook`` in this thread, too.

    When it writes, Spark looks for sources in Python in the thread's active session alone.  A
    thread of Python has none before it makes a session, or a frame of rows of its own.

    Args:
        session: One that another thread made.
    """
    from pyspark.sql.utils import is_remote as has_server  # noqa: PLC0415

    if not has_server():
        java: Any = session._jvm  # noqa: SLF001 - PySpark has no other way
        java.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001


def _is_checked_otherwise(session: SparkSession) -> bool:
    """Tell whether the driver is the one executor, or a Spark Connect server has the executors."""
    from pyspark.sql.utils import is_remote as has_server  # noqa: PLC0415

    master = "" if has_server() else session.sparkContext.master
    return not master or master == "local" or master.startswith("local[")


def is_remote(master: str | None) -> TypeGuard[str]:
    """Tell whether a master is a Spark Connect server."""
    return master is not None and master.startswith("sc://")


def active_session() -> SparkSession | None:
    """Return the session that runs in this process, if there is one."""
    from pyspark.sql import SparkSession  # noqa: PLC0415

    return SparkSession.getActiveSession()


def register_views(spark: SparkSession, metadata_uri: str, **options: str) -> list[str]:
    """Make the metadata tables views, and the functions that read entries; return their names.

    What a view shows is settled when it is first used; call this again to look again.

    Args:
        spark: In a session of ``spark_session`` the views are ``bk.ledgers`` and so on; elsewhere
            they lie in Spark's database of global temporary views.
        metadata_uri: The cluster's.
        options: Others of the source.
    """
    from quorumbook.spark.functions import register_functions  # noqa: PLC0415 - needs PySpark
    from quorumbook.spark.request.selection import META_TABLES  # noqa: PLC0415

    database = spark.conf.get("spark.sql.globalTempDatabase")
    given = {"metadataServiceUri": metadata_uri, **options}
    for table in META_TABLES:
        _make_view(spark, table, {**given, "path": f"meta:{table}"})
    return [f"{database}.{table}" for table in META_TABLES] + register_functions(spark, given)


def register_streams(
    spark: SparkSession, metadata_uri: str, *names: str, **options: str
) -> list[str]:
    """Make streams views that SQL reads and writes; return the views' names.

    ``INSERT INTO bk.orders (key, value) SELECT ...`` is one transaction.  What a view shows is
    settled when it is first used; call this again to look again.

    Args:
        spark: See ``register_views``.
        metadata_uri: The cluster's, or a namespace's address.
        names: The streams'; a partitioned one by its bare name.
        options: Others that the source and the sink both take.

    Raises:
        ConfigError: a stream has the name of a metadata table.
    """
    from quorumbook.spark.request.selection import META_TABLES  # noqa: PLC0415 - needs PySpark

    taken = sorted(set(names) & set(META_TABLES))
    if taken:
        raise ConfigError(
            f"{taken[0]} is a metadata table here; CREATE TEMPORARY VIEW gives the stream a view "
            "of another name"
        )
    for name in names:
        given = {"metadataServiceUri": metadata_uri, **options, "path": f"stream:{name}"}
        _make_view(spark, name, given, _STREAM_COLUMNS)
    database = spark.conf.get("spark.sql.globalTempDatabase")
    return [f"{database}.{_identifier(name)}" for name in names]


def register_tables(
    spark: SparkSession,
    metadata_uri: str,
    *names: str,
    database: str = "quorumbook",
    **options: str,
) -> list[str]:
    """Make streams, ledgers and metadata tables of Spark's catalog, as they are now; return them.

    Called again it adds, changes and drops tables, and leaves those of others alone.  A query of a
    table always looks again.

    Args:
        spark: A session; its catalog is in memory, or that of a Hive metastore or a server.
        metadata_uri: The cluster's, or a namespace's address.
        names: The streams; none: all that there are.
        database: Where the tables are; it is made if it is missing.
        options: ``namespace``, ``configFile``, ``passwordFile``, ``passwordEnv``, ``digestType``.

    Raises:
        ConfigError: two tables would have one name, or one of ours that of another's; or there is
            another option.
        StreamNotFoundError: there is no such stream.
    """
    from quorumbook.spark import tables  # noqa: PLC0415 - needs PySpark

    found = tables.register(spark, metadata_uri, *names, database=database, **options)
    return sorted(f"{database}.{name}" for name in found.made + found.changed + found.kept)


def _make_view(spark: SparkSession, name: str, given: Mapping[str, str], columns: str = "") -> None:
    listed = ", ".join(f"'{key}' '{_quoted(value)}'" for key, value in given.items())
    spark.sql(
        f"CREATE OR REPLACE GLOBAL TEMPORARY VIEW {_identifier(name)} {columns} "
        f"USING quorumbook OPTIONS ({listed})"
    )


def _identifier(name: str) -> str:
    doubled = name.replace("`", "``")
    return f"`{doubled}`"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def check_environment(master: str | None = None) -> None:
    """Have Spark's workers run this Python, and see whether what it needs is there.

    Args:
        master: Where Spark runs; a Spark Connect server has Java and workers of its own.

    Raises:
        ConfigError: something is not; the message says what to do.
    """
    try:
        import pandas  # noqa: PLC0415
        import pyspark  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'quorumbook[spark]'") from error
    if int(pandas.__version__.partition(".")[0]) >= 3:
        raise ConfigError(
            f"PySpark 4.3 does not go with pandas {pandas.__version__}: pip install 'pandas<3'"
        )
    if is_remote(master):
        check_connect()
        return
    check_java()
    given = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if given != sys.executable:
        check_worker_python(given)


def check_connect() -> None:
    """Raise ConfigError if what PySpark wants for Spark Connect is not there."""
    for name in ("grpc_status", "google.rpc", "zstandard"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"{name} is missing: pip install 'pyspark[connect]<4.4'")


def check_java() -> None:
    """Raise ConfigError if there is no Java, or an old one."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    how = f"Spark needs Java {_JAVA} or later; on Debian: apt-get install default-jdk-headless"
    if not java or not os.path.exists(java):
        where = f"there is none in JAVA_HOME={home}" if home else "there is none on the PATH"
        raise ConfigError(f"{how} ({where})")
    told = subprocess.run(  # noqa: S603 - the program was just looked for
        [java, "-version"], capture_output=True, text=True, check=False
    ).stderr
    found = re.search(r'version "(\d+)', told)
    if found is not None and int(found[1]) < _JAVA:
        raise ConfigError(f"{how} ({java} is {found[1]})")


def check_worker_python(python: str) -> None:
    """Raise ConfigError unless an interpreter is as good as this one for Spark's workers."""
    try:
        done = subprocess.run(  # noqa: S603 - what Spark itself will run
            [python, "-c", _CHECK], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ConfigError(f"PYSPARK_PYTHON={python} cannot be run: {error.strerror}") from error
    own = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-c", _CHECK], capture_output=True, text=True, check=True
    ).stdout
    if done.returncode or done.stdout != own:
        reason = done.stderr.strip().rpartition("\n")[2] or f"it has {done.stdout.strip()}"
        raise ConfigError(
            f"PYSPARK_PYTHON={python} is not like the driver's {sys.executable} "
            f"({own.strip()}): {reason}; leave the variable unset, or install the same there"
        )
