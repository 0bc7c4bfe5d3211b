"""What a bookie does with requests: adds, reads, long polls, lookups, and who may."""
