"""`quorumbook spark`: jobs on Spark, started and looked at."""
