"""
The relay: reads new outbox rows from the write-ahead log and publishes them as they are committed.

`lsn`, `pgoutput`, `replication_frames`, `window` and `pipeline` are pure. `stream` is the only module that speaks the
replication protocol.
"""
