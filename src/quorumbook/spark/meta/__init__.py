"""The metadata of a cluster as tables of Spark."""
