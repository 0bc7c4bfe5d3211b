"""Cluster metadata: the store interface with its drivers, and the managers written once on top.

``uri.open_store`` opens a store.  Drivers: ``memory``, ``sqlite``.  Managers: ``cluster`` (layout,
instance id), ``ledgers``, ``ids`` (ledger ids), ``registration`` (which bookies are there),
``cookies``; ``paths`` says where in the tree everything lies, in the peer's layout.  ``transfer``
moves the whole tree of a cluster from store to store, or into a file (``dump``).
"""
