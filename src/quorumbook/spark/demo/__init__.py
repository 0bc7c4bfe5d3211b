"""What ``quorumbook spark demo`` does on Spark; the story around it is in ``cli/spark/demo.py``."""
