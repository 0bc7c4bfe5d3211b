"""A metadata store in one SQLite file: ``store``, on ``thread``, ``rows`` and ``file``."""
