"""
PayloadCodec: what happens to payloads between an application and the tables: compression, encryption, ...

A codec is given to EventStreams. It changes the payloads of events and snapshots, in the log and in the messages alike,
and sets their content type, by which consumers recognise them. Payloads from before it was given are read unchanged:
`decode` gets every payload and leaves alone those of other content types.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from outrider.producer.encoding import Encoded


class PayloadCodec(Protocol):
    def encode(self, payload: Encoded, subject: str | None) -> Encoded:
        """The payload as it is stored. `subject` is that of the event."""

    def decode(self, payload: Encoded) -> Encoded:
        """The payload as it was given to `encode`; a payload of another content type unchanged."""


class Forgotten(NamedTuple):
    """The data of an event whose subject was forgotten: its key is deleted, so it cannot be decrypted."""

    subject: str


FORGOTTEN = "application/vnd.outrider.forgotten"
"""The content type of a payload that cannot be decrypted any more; the payload is the subject."""
