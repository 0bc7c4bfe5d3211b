"""Completed segments as Parquet files: anybody's query engine reads them, and so does a stream.

    places      where files may be: directories, object stores
    part_file   the bytes of one file
    manifest    what is known of a segment's files, and how that may change (pure)
    nodes       where it stands in the metadata, and changes by compare-and-set
    reader      a segment's ledger, read from its files
    copying     from bookies into files, and files read again
    moving      offload, go live, delete the bookies' copy, restore, remove

The files hold whole entries, so a ledger comes back to bookies byte by byte.  pyarrow is imported
by ``places`` and ``part_file`` alone, and only where a file is read or written.
"""
