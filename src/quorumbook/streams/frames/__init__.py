"""Records as Arrow tables, for pandas, Polars, DuckDB and Spark.

records  the columns of records, and what makes them
reading  a stream, or a range of it, as batches, a table, or a frame
tabular  what can be read so, and how it is asked for, without pyarrow;  parts: of which streams

The first two need the extra ``[arrow]``, so nothing here is imported before it is asked for.
"""
