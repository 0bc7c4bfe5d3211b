"""The HTTP API: every answer is JSON, every error one problem object.

problems      errors as RFC 9457 has them
fields        what endpoints take, checked and documented alike
endpoint      one endpoint as it is declared
jobs          work that takes longer than a request
audit_stream  the audit log as a stream of the cluster
streams_held  writers and members of groups between requests
known_facts   what is known of a cluster, and its age
service       what endpoints share
openapi       the document of all of them
app           who is let in, limits, routes
"""
