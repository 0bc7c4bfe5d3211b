"""Reading a stream: from anywhere in it, across segments, to an end or for ever.

reader          what the caller sees;  batches: the records that it gets
seek            finds where to begin
segment_list    the segments before a reader;  read_ahead: several of them at a time
segment_reader  one segment
entries         an entry's records;  chunks: records larger than an entry (both pure)
snapshot        ranges that many processes read
"""
