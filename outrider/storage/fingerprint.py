"""
Fingerprint: failures that are the same but for their numbers, ids and quoted values have the same.

    PreconditionFailed: message of 52 MB to queue 'orders-17' refused   ┐ the same, if reason and
    PreconditionFailed: message of 7 MB to queue 'orders-3' refused     ┘ event type are the same too

Pure functions. A fingerprint is computed here alone, in Python, so that it means the same in every command; the
database only narrows what is looked at. It may change with a version of this package: look it up anew, do not store it.
"""

from __future__ import annotations

import hashlib
import re

LENGTH = 12
"""Hexadecimal digits of a fingerprint."""

# In this order: what is quoted may hold anything, an id holds numbers.
_VARYING = (
    (re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`"""), "<value>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"), "<id>"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*"), "<n>"),
)


def fingerprint(reason: str, event_type: str, error: str | None) -> str:
    """Which failure it is, in a few digits."""
    parts = "\0".join((reason, event_type, pattern(error)))
    return hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()[:LENGTH]


def pattern(error: str | None) -> str:
    """The error without what differs from message to message."""
    text = error or ""
    for varying, name in _VARYING:
        text = varying.sub(name, text)
    return text
