"""
SubjectEncryption: encrypt the payloads of a subject (usually a person) with a key of its own.

    streams = EventStreams(outbox, codec=SubjectEncryption())
    streams.append(connection, "account:7", [Event(event_type="account.opened", payload={...}, subject="customer-42")])

Without its key a payload can never be read again, wherever it is: log, outbox, archive, dead letters, broker.
`outrider forget customer-42` deletes the key; `data` of the events is then Forgotten("customer-42"), and an append for
the subject raises SubjectForgotten. The subject's name itself is stored unencrypted: use an id, not a name.

Keys are in the table outbox_subject_key, which the append's transaction reads and writes, or come from a callable, for
a key management service. Who reads the table can read the payloads: its grants and its backups matter.

AES-256-GCM of the library `cryptography` (`pip install 'outrider[encryption]'`). A consumer decrypts with
`SubjectEncryption(keys).decode(...)`, or with the keys of the table, by `load_keys`.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from os import urandom
from typing import Any

from outrider.errors import SubjectForgotten
from outrider.producer.encoding import Encoded
from outrider.producer.handles import no_guard
from outrider.producer.payload_codec import FORGOTTEN
from outrider.producer.statement import Statement
from outrider.producer.sync_or_async import Queries, Query, run_queries
from outrider.storage import sql_files

ENCRYPTED = "application/vnd.outrider.encrypted+json"

Keys = Callable[[str], bytes | None]


class SubjectEncryption:
    """
    A PayloadCodec. Events without a subject are stored as they are.

    keys  a function from a subject to its key of 32 bytes, None where it was forgotten; without it, the keys are in the
          table, where a subject that is new gets one
    """

    def __init__(self, keys: Keys | None = None, *, schema: str = "public") -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ImportError("encryption needs the library cryptography: pip install 'outrider[encryption]'") from None
        self._cipher: Any = AESGCM
        self._invalid: type[Exception] = InvalidTag
        self._keys = keys
        queries = sql_files.Queries(schema)
        self._select, self._insert = Statement(queries["subject_keys"]), Statement(queries["add_subject_keys"])

    def encode(self, payload: Encoded, subject: str | None) -> Encoded:
        if subject is None:
            return payload
        key = None if self._keys is None else self._keys(subject)
        if key is None:
            raise SubjectForgotten(subject)
        nonce = urandom(12)
        sealed = {
            "subject": subject,
            "content_type": payload.content_type,
            "content_encoding": payload.content_encoding,
            "nonce": b64encode(nonce).decode(),
            "ciphertext": b64encode(self._cipher(key).encrypt(nonce, payload.payload, subject.encode())).decode(),
        }
        return Encoded(json.dumps(sealed).encode(), ENCRYPTED, "utf-8")

    def decode(self, payload: Encoded) -> Encoded:
        if payload.content_type != ENCRYPTED:
            return payload
        sealed = json.loads(payload.payload)
        subject = str(sealed["subject"])
        key = None if self._keys is None else self._keys(subject)
        if key is None:
            return Encoded(subject.encode(), FORGOTTEN, "utf-8")
        try:
            data = self._cipher(key).decrypt(
                b64decode(sealed["nonce"]), b64decode(sealed["ciphertext"]), subject.encode()
            )
        except self._invalid:
            raise ValueError(f"the key of {subject!r} is not the one that encrypted this payload") from None
        return Encoded(data, sealed["content_type"], sealed["content_encoding"])

    def load_keys(self, handle: Any, payloads: Iterable[Encoded]) -> Any:
        """A codec with the keys of these payloads from the table, or an awaitable of it: for consumers."""
        return run_queries(handle, self.for_reading(payloads))

    def for_reading(self, payloads: Iterable[Encoded]) -> Queries[SubjectEncryption]:
        """A codec with the keys of these payloads."""
        subjects = {str(json.loads(each.payload)["subject"]) for each in payloads if each.content_type == ENCRYPTED}
        if self._keys is not None or not subjects:
            return self
        return self._with(dict((yield from self._read(subjects))))

    def for_writing(self, given: Iterable[str | None]) -> Queries[SubjectEncryption]:
        """A codec with the keys of these subjects. A new subject gets a key, in the caller's transaction."""
        subjects = {subject for subject in given if subject is not None}
        if self._keys is not None or not subjects:
            return self
        keys = yield from self._read(subjects)
        if missing := sorted(subjects - keys.keys()):
            new = {"subjects": missing, "keys": [urandom(32) for _ in missing]}
            yield Query(self._insert, new, no_guard)
            keys = yield from self._read(subjects)  # another transaction may have been first
        return self._with(keys)

    def _read(self, subjects: set[str]) -> Queries[dict[str, bytes | None]]:
        rows = yield Query(self._select, {"subjects": sorted(subjects)})
        return {subject: None if key is None else bytes(key) for subject, key in rows}

    def _with(self, keys: Mapping[str, bytes | None]) -> SubjectEncryption:
        bound = object.__new__(SubjectEncryption)
        bound.__dict__.update(vars(self), _keys=keys.get)
        return bound
