"""The metadata of a namespace as tables, for pandas, Polars and Spark.

rows      the rows of streams, segments and cursors
columns   what each table has; needs the extra ``[arrow]``
tabular   how a table is asked for, without pyarrow
"""
