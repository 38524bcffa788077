"""Delivery: from rows to a broker's confirmations. See publisher.py for the contract."""

from outbox.delivery.outcome import Outcome
from outbox.delivery.publisher import Publisher, TlsOptions, open_publisher

__all__ = ["Outcome", "Publisher", "TlsOptions", "open_publisher"]
