"""Files in a cluster, for programs that know Hadoop's file systems, such as Spark's checkpoints.

tree      names in the metadata, contents in ledgers
uploads   places for files that are being sent
document  the paths of webhdfs, for the OpenAPI document
webhdfs   the same over HTTP, as Hadoop's client speaks it
"""
