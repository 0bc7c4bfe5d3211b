"""The directories of a bookie: where things lie, who holds them, how a stop left them."""
