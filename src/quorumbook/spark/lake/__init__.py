"""Tables that ``lake-sink`` writes: plain Parquet with manifests, Iceberg, Delta Lake.

rows        which columns, and how records become them
dead_letters  where records go that cannot be decoded
table       what every kind of table can do: say how far it is, take a batch in one step
manifest    a directory of Parquet files
next_batch  whose batch is next, where a directory cannot say that: in object stores
iceberg     by pyiceberg
delta       by deltalake
upserts     changes of a table that has the latest record of each key
versions    which files a version is made of, for who follows a table's changes

How far the streams were read stands in the table itself, in the step that makes a batch's files
visible.  So nothing else has to be kept, and no batch is there twice or in part.
"""
