"""Cluster metadata: the store interface with its drivers, and the managers written once on top.

uri           opens a store by its address
store         what a store is;  tree: what all drivers do alike, and its
              rules for those that keep rows of their own
memory, sqlite, zookeeper, etcd    the drivers
paths         where in the tree everything lies, in the peer's layout
cluster       layout and instance id
ledgers       metadata of ledgers;  ids: the next ledger id
bookies       cookies, registrations, racks
recovery      the queue of ledgers that lack copies, its locks and switches
election      who leads
transfer      a whole cluster from store to store, or into a file (dump)
"""
