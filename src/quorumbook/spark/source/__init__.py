"""Streams and ledgers as a source of Spark: what is there, cut into tasks, batch or query."""
