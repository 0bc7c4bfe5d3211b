"""Auto-recovery in the metadata store: queue, locks, quarantine, switches."""
