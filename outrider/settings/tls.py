"""TLS options of a broker connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """For amqps:// and rediss://. By default, certificate and host name are verified against the system's CAs."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    verify: bool = True
