"""
The relay: new rows of the outbox, read from the write-ahead log and published as they are committed.

`lsn` and `pgoutput` are pure; `stream` is the only module that talks the replication protocol.
"""
