"""What an auditor does: finds lost bookies and checks every ledger from time to time."""
