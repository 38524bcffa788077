"""
The outbox's tables as models: for queries, the admin and tests of an application.

They read the database and the schema that OUTRIDER names. Unmanaged: migrations run the files in sql/, which define the
tables. Nothing here writes: messages are enqueued with
outrider.producer.django.publish and settled by the services.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import models

from outrider.operations.redaction import HIDDEN, load_redactor, redacted
from outrider.producer.django.conf import get_settings, table_name
from outrider.producer.django.fields import Instant, JsonText
from outrider.storage.task_id import task_id_of


class OutboxManager(models.Manager[Any]):
    """Reads OUTRIDER["DATABASE"], unless another alias is named: `OutboxMessage.objects.using("other")`."""

    def get_queryset(self) -> Any:
        queryset = super().get_queryset()
        return queryset if self._db else queryset.using(get_settings().database)


class _Message(models.Model):
    objects = OutboxManager()

    id: models.BigIntegerField[Any, Any] = models.BigIntegerField(primary_key=True)
    event_id: models.UUIDField[Any, Any] = models.UUIDField()
    schema_version: models.SmallIntegerField[Any, Any] = models.SmallIntegerField()
    event_type: models.TextField[Any, Any] = models.TextField()
    aggregate_type: models.TextField[Any, Any] = models.TextField(null=True)
    aggregate_id: models.TextField[Any, Any] = models.TextField(null=True)
    ordering_key: models.TextField[Any, Any] = models.TextField(null=True)
    exchange: models.TextField[Any, Any] = models.TextField()
    routing_key: models.TextField[Any, Any] = models.TextField()
    payload: models.BinaryField[Any, Any] = models.BinaryField()
    content_type: models.TextField[Any, Any] = models.TextField()
    content_encoding: models.TextField[Any, Any] = models.TextField()
    headers = JsonText()
    properties = JsonText()
    declarations = JsonText(null=True)
    context = JsonText(null=True)
    created_at: models.DateTimeField[Any, Any] = models.DateTimeField()
    attempts: models.IntegerField[Any, Any] = models.IntegerField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.event_type} {self.event_id}"

    @property
    def task_id(self) -> str:
        """The id of a Celery task; empty for other messages."""
        return task_id_of(str(self.event_id), self.headers, self.properties) or ""

    @property
    def shown_payload(self) -> str:
        """The redacted payload, for operators."""
        return show_payload(self.event_type, bytes(self.payload), self.content_type, self.headers or {})


class OutboxMessage(_Message):
    """A message that has not been delivered."""

    dedup_key: models.TextField[Any, Any] = models.TextField(null=True)
    expires_at: models.DateTimeField[Any, Any] = models.DateTimeField(null=True)
    next_attempt_at = Instant(null=True)
    owner: models.TextField[Any, Any] = models.TextField()
    claimed_by: models.TextField[Any, Any] = models.TextField(null=True)
    last_error: models.TextField[Any, Any] = models.TextField(null=True)
    last_failed_at: models.DateTimeField[Any, Any] = models.DateTimeField(null=True)

    class Meta:
        managed = False
        db_table = table_name("outbox")
        default_permissions = ("view",)
        permissions = (("retry_outboxmessage", "Can retry outbox message"),)


class DeadLetter(_Message):
    """A message that will not be retried."""

    dedup_key: models.TextField[Any, Any] = models.TextField(null=True)
    expires_at: models.DateTimeField[Any, Any] = models.DateTimeField(null=True)
    last_error: models.TextField[Any, Any] = models.TextField(null=True)
    last_failed_at: models.DateTimeField[Any, Any] = models.DateTimeField(null=True)
    reason: models.TextField[Any, Any] = models.TextField()
    died_at: models.DateTimeField[Any, Any] = models.DateTimeField()

    class Meta:
        managed = False
        db_table = table_name("outbox_dead_letter")
        default_permissions = ("view",)
        permissions = (
            ("replay_deadletter", "Can replay dead letter"),
            ("discard_deadletter", "Can discard dead letter"),
        )


class ArchivedMessage(_Message):
    """A delivered message, where the services archive."""

    delivered_at: models.DateTimeField[Any, Any] = models.DateTimeField()

    class Meta:
        managed = False
        db_table = table_name("outbox_archive")
        default_permissions = ("view",)


class StoredEvent(models.Model):
    """An event of a stream. The table's key is stream and version; Django before 5.2 has only keys of one column."""

    objects = OutboxManager()

    event_id: models.UUIDField[Any, Any] = models.UUIDField(primary_key=True)
    stream: models.TextField[Any, Any] = models.TextField()
    version: models.BigIntegerField[Any, Any] = models.BigIntegerField()
    event_type: models.TextField[Any, Any] = models.TextField()
    payload: models.BinaryField[Any, Any] = models.BinaryField()
    content_type: models.TextField[Any, Any] = models.TextField()
    content_encoding: models.TextField[Any, Any] = models.TextField()
    headers = JsonText()
    created_at: models.DateTimeField[Any, Any] = models.DateTimeField()
    epoch: models.IntegerField[Any, Any] = models.IntegerField()
    transaction_id: models.BigIntegerField[Any, Any] = models.BigIntegerField()
    position: models.BigIntegerField[Any, Any] = models.BigIntegerField()
    type_version: models.SmallIntegerField[Any, Any] = models.SmallIntegerField()

    class Meta:
        managed = False
        db_table = table_name("outbox_event")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.stream} {self.version}"

    @property
    def shown_payload(self) -> str:
        """The redacted payload, for operators."""
        return show_payload(self.event_type, bytes(self.payload), self.content_type, self.headers or {})


def show_payload(event_type: str, payload: bytes, content_type: str, headers: Mapping[str, Any]) -> str:
    path = get_settings().redactor
    try:
        redact = load_redactor(path) if path else None
    except ValueError:
        return HIDDEN
    return redacted(redact, event_type, payload, content_type, headers)
