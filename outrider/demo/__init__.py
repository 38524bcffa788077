"""
The demo: a shop that commits orders, the two services, a consumer, and a broker that is killed on the way.

`shop` and `consumer` stand for the two sides that a user writes, `servers` brings up what runs between them, `ledger`
compares what was committed with what arrived, `story` lets things happen, `screen` shows them. Everything is real: the
servers are embedded, the services are the programs that run in production, and nothing is simulated but the kill.
"""
