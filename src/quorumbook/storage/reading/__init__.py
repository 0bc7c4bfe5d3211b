"""Reading entries: from memory in the same step, else by jobs of the read worker."""
