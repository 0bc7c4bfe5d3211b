"""A bookie: takes, keeps and gives entries, and belongs to a cluster.

server        its life: who it is, start, service, stop
connections   who may connect, bytes into requests, budgets of memory, turns of the loop
requests      adds, reads, long polls, lookups, fences
membership    cookies, registration, the cluster's ledgers, healing what is damaged here
read_only     the operator's word;  disks: what full ones mean
http          the server and its pages;  metrics: what is counted
stopped       directories of a bookie that does not run: mended, taken over, given back
"""
