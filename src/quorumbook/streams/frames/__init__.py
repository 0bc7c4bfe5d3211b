"""Records as Arrow tables, for pandas, Polars, DuckDB and Spark.

columns  columns of what a reader holds, without a step for each row in Python
records  the columns of records, and what makes them
reading  a stream, or a range of it, as batches, a table, or a frame
tabular  what can be read so, and how it is asked for, without pyarrow;  parts: of which streams

The first three need the extra ``[arrow]``, so nothing here is imported before it is asked for.
"""
