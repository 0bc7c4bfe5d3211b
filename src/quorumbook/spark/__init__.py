"""Ledgers and streams as Spark tables; needs the extra ``spark`` (PySpark 4.3, Java 17).

session       makes a Spark session that suits;  data_source: what Spark gets by a format's name
options       what can be said with ``.option(...)``
connection    where the cluster is;  pool: one client for each process and cluster
request       which streams or ledgers, from where to where;  offsets, pieces, tasks cut of them
rows          what there is, and rows and columns out of it
source        a batch, a streaming query;  limits, lag and cursors of it
sink          rows to streams
meta          ``meta:``;  functions: table functions;  tables: of Spark's catalog
jobs          commands that run on Spark, over data and for upkeep;  lake: tables they write
pipeline      streams and steps between them, run from a file
demo          what ``quorumbook spark demo`` shows
executors     the package on executors that have it not

Only these modules know PySpark, and nothing outside but the command line knows them.

    from quorumbook.spark import spark_session

    spark = spark_session(master="local[4]")
    spark.read.format("quorumbook").option("metadataServiceUri", uri).load("ledger:12").show()
"""

from quorumbook.spark.session import (
    activate,
    check_environment,
    register_streams,
    register_tables,
    register_views,
    spark_session,
)

__all__ = [
    "activate",
    "check_environment",
    "register_streams",
    "register_tables",
    "register_views",
    "spark_session",
]
