"""A metadata store in etcd: ``address`` (URIs), ``store`` (the store and its session), ``calls``
(operations in their order, as transactions), ``rows`` (keys, values, and what a transaction
compares), ``watch`` (news), ``client`` (the wire; the only module that knows grpcio).
"""
