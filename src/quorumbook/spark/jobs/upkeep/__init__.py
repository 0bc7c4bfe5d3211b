"""Jobs that look after a cluster: audits, moves, tiers, checks and usage."""
