"""A metadata store in etcd.

``address`` takes URIs apart, ``store`` is the store and its session, ``calls`` carries operations
out in their order, ``rows`` has keys, values and what a transaction compares, ``watch`` the news,
``client`` the wire; it alone knows grpcio.
"""
