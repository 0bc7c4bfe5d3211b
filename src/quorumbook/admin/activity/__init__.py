"""What a cluster does at the moment.

counts  a bookie's counters and latencies
looks   rates between two looks: bookies, and the busiest ledgers and streams
"""
