"""Delivery: publishing rows to a broker, and the outcome of each. See publisher.py for the contract."""

from outrider.delivery.publisher import Outcome, Publisher, open_publisher

__all__ = ["Outcome", "Publisher", "open_publisher"]
