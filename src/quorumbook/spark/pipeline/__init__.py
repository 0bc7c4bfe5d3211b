"""``quorumbook spark pipeline``: streams, steps between them and where they end, from one file.

declaration   what the file says;  frames: a step's rows
numbers       what is known of each step, of Spark's progress;  metrics: for Prometheus
supervision   when a step that failed is started again
picture       the graph with its rates;  running: all of it on a session
"""
