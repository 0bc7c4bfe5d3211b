"""Schemas of streams: their versions and rules, and decoding records by them.

columns          what columns decoded records have, in every format;  limits: what is too much
json_format      records of JSON by JSON Schema;  avro_format, protobuf_format: likewise
compatibility    whether a new version may follow;  json_rules, avro_rules, protobuf_rules
decoder          decodes records, or says why one cannot be;  dead_letters: where those go
registering      reads and sets a stream's schemas in the metadata store

The formats need the extra ``[schema]``, so their libraries are imported when one is used.
"""
