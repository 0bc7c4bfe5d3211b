"""What the metadata store holds of streams, and who may change it.

address          where a namespace is
namespace_nodes  a namespace's binding, policy and identity
stream_nodes     a stream's segments, and every change of them
policy           what holds for a stream, or for all of a namespace (pure)
lock             who may write a stream
"""
