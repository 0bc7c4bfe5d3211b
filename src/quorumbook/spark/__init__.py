"""Ledgers and streams as Spark tables; needs the extra ``spark`` (PySpark 4.3, Java 17).

session       makes a Spark session that suits
source        what ``pyspark_quorumbook`` hands Spark: readers and writers by options
options       what can be said with ``.option(...)``;  selection: what is read
connection    where the cluster is;  pool: one client for each process and cluster
schema        the columns;  arrow: columns out of entries
batch         a batch;  tail: a streaming query;  limits, lag, cursors: of it
kinds         what streams and ledgers do differently
views         what there is;  stream_views, ledger_views: looks at it;  starts, where: both ends
meta          ``meta:``;  meta_tables, meta_ledgers: its rows;  functions: table functions
planning      cuts that into tasks;  task: what one is told;  offsets: how far a query is
together      asks the same about many things
stream_rows   records as rows;  ledger_rows: entries as rows

Only these modules know PySpark, and nothing outside but the command line knows them.

    from quorumbook.spark import spark_session

    spark = spark_session(master="local[4]")
    spark.read.format("quorumbook").option("metadataServiceUri", uri).load("ledger:12").show()
"""

from quorumbook.spark.session import activate, check_environment, register_views, spark_session

__all__ = ["activate", "check_environment", "register_views", "spark_session"]
