"""The metadata of a cluster as tables, for pandas, Polars and Spark.

ledgers   rows that are made ledger by ledger;  cluster: all other rows
columns   what each table has; needs the extra ``[arrow]``
tabular   how a table is asked for, without pyarrow
"""
