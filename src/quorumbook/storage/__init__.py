"""What a bookie keeps on its disks: journal, entry logs, index, caches; ``store`` is the facade."""
