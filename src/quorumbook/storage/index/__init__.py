"""The index: where every run of entries lies, in tables that can be made again."""
