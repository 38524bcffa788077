"""
The kernel of Outrider: what producer, relay and scheduler agree on.

The table is the truth, the WAL is the fast path. Applications import `producer`; the services are `cdc_relay` and
`retry_scheduler`; this package holds the message, the queries, the classification of failures and the delivery.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("outrider")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"
