"""
Fingerprint: a short hash that is the same for failures that differ only in numbers, ids and quoted values.

    PreconditionFailed: message of 52 MB to queue 'orders-17' refused   ┐ the same, if reason and
    PreconditionFailed: message of 7 MB to queue 'orders-3' refused     ┘ event type are the same too

Pure functions. Only Python computes fingerprints, never SQL, so that they are equal in every command. They may change
with a version of this package: do not store them.
"""

from __future__ import annotations

import hashlib
import re

LENGTH = 12
"""Hexadecimal digits of a fingerprint."""

# The order matters: a quoted value may contain ids and numbers, an id contains numbers.
_VARYING = (
    (re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`"""), "<value>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b|\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"), "<id>"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*"), "<n>"),
)


def fingerprint(reason: str, event_type: str, error: str | None) -> str:
    """The fingerprint of a failure."""
    parts = "\0".join((reason, event_type, pattern(error)))
    return hashlib.sha256(parts.encode(errors="surrogatepass")).hexdigest()[:LENGTH]


def pattern(error: str | None) -> str:
    """The error text with placeholders for numbers, ids and quoted values."""
    text = error or ""
    for varying, name in _VARYING:
        text = varying.sub(name, text)
    return text
