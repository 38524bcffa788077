"""
The demo: a shop that commits orders, both services, a consumer, and a broker that is killed and restarted.

`shop` and `consumer` are the two sides that a user writes, `servers` starts what runs between them, `tally` compares
committed with delivered messages, `scenario` runs the steps, `screen` shows them. The servers are embedded and the
services are the programs that run in production; nothing is simulated except the kill.
"""
