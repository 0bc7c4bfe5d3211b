"""A bookie over HTTP: the server, who may change something, and the pages of its parts."""
