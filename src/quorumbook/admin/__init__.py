"""What an operator looks at: a cluster's health, and who may change what over HTTP.

Rooms, each importing only what stands above it:

options   where it is served, and whom it lets in
access/   roles, tokens, who is let in, what was changed
facts/    a cluster as it is now: its bookies, its ledgers, what is wrong and what to do about it
activity/ how busy it is at the moment
http/     from a request to an answer
endpoints/  what the API answers, and peer/ on the paths of Apache BookKeeper
console/  pages for a browser, made of what the API answers
files/    files in the cluster, over HTTP as Hadoop's clients speak it
server    listening
"""
