"""Jobs that make records: queries, ingest, export, copies and tables of a lake."""
