"""The metadata store in ZooKeeper, over a client of our own.

    jute       bytes: requests, answers, events
    connection one TCP connection: frames, answers in order, pings
    sasl       the mechanism DIGEST-MD5
    session    one session over many connections: reconnecting, expiry, watches
    store      the ``MetadataStore``: errors, and writes whose answer was lost

Nothing outside imports more than ``address`` and ``store``.
"""
