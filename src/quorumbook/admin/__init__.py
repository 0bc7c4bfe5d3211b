"""What an operator looks at: a cluster's health, and who may change what over HTTP.

Rooms, each importing only what stands above it:

options   where it is served, and whom it lets in
access/   roles, tokens, who is let in, what was changed
facts/    a cluster as it is now: its bookies, its ledgers, what is wrong and what to do about it
http/     the API
console/  pages for a browser, made of what the API answers
server    listening
"""
