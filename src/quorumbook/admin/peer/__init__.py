"""The paths of Apache BookKeeper's HTTP API, with its verbs, parameters, keys and texts.

endpoints     all of them, and those about a cluster
of_bookie     those about one bookie
"""
