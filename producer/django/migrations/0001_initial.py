"""Runs sql/migrations/0001_initial.sql, and creates the state of the unmanaged models."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

import outrider.producer.django.fields
from outrider.producer.django.conf import table_name
from outrider.producer.django.operations import RunOutboxMigration


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        RunOutboxMigration(1),
        migrations.CreateModel(
            name="ArchivedMessage",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("event_id", models.UUIDField()),
                ("schema_version", models.SmallIntegerField()),
                ("event_type", models.TextField()),
                ("aggregate_type", models.TextField(null=True)),
                ("aggregate_id", models.TextField(null=True)),
                ("ordering_key", models.TextField(null=True)),
                ("exchange", models.TextField()),
                ("routing_key", models.TextField()),
                ("payload", models.BinaryField()),
                ("content_type", models.TextField()),
                ("content_encoding", models.TextField()),
                ("headers", outrider.producer.django.fields.JsonText()),
                ("properties", outrider.producer.django.fields.JsonText()),
                ("declarations", outrider.producer.django.fields.JsonText(null=True)),
                ("context", outrider.producer.django.fields.JsonText(null=True)),
                ("created_at", models.DateTimeField()),
                ("attempts", models.IntegerField()),
                ("delivered_at", models.DateTimeField()),
            ],
            options={
                "db_table": table_name("outbox_archive"),
                "default_permissions": ("view",),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("event_id", models.UUIDField()),
                ("schema_version", models.SmallIntegerField()),
                ("event_type", models.TextField()),
                ("aggregate_type", models.TextField(null=True)),
                ("aggregate_id", models.TextField(null=True)),
                ("ordering_key", models.TextField(null=True)),
                ("exchange", models.TextField()),
                ("routing_key", models.TextField()),
                ("payload", models.BinaryField()),
                ("content_type", models.TextField()),
                ("content_encoding", models.TextField()),
                ("headers", outrider.producer.django.fields.JsonText()),
                ("properties", outrider.producer.django.fields.JsonText()),
                ("declarations", outrider.producer.django.fields.JsonText(null=True)),
                ("context", outrider.producer.django.fields.JsonText(null=True)),
                ("created_at", models.DateTimeField()),
                ("attempts", models.IntegerField()),
                ("dedup_key", models.TextField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("last_error", models.TextField(null=True)),
                ("last_failed_at", models.DateTimeField(null=True)),
                ("reason", models.TextField()),
                ("died_at", models.DateTimeField()),
            ],
            options={
                "db_table": table_name("outbox_dead_letter"),
                "default_permissions": ("view",),
                "permissions": (
                    ("replay_deadletter", "Can replay dead letter"),
                    ("discard_deadletter", "Can discard dead letter"),
                ),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("event_id", models.UUIDField()),
                ("schema_version", models.SmallIntegerField()),
                ("event_type", models.TextField()),
                ("aggregate_type", models.TextField(null=True)),
                ("aggregate_id", models.TextField(null=True)),
                ("ordering_key", models.TextField(null=True)),
                ("exchange", models.TextField()),
                ("routing_key", models.TextField()),
                ("payload", models.BinaryField()),
                ("content_type", models.TextField()),
                ("content_encoding", models.TextField()),
                ("headers", outrider.producer.django.fields.JsonText()),
                ("properties", outrider.producer.django.fields.JsonText()),
                ("declarations", outrider.producer.django.fields.JsonText(null=True)),
                ("context", outrider.producer.django.fields.JsonText(null=True)),
                ("created_at", models.DateTimeField()),
                ("attempts", models.IntegerField()),
                ("dedup_key", models.TextField(null=True)),
                ("expires_at", models.DateTimeField(null=True)),
                ("next_attempt_at", outrider.producer.django.fields.Instant(null=True)),
                ("owner", models.TextField()),
                ("claimed_by", models.TextField(null=True)),
                ("last_error", models.TextField(null=True)),
                ("last_failed_at", models.DateTimeField(null=True)),
            ],
            options={
                "db_table": table_name("outbox"),
                "default_permissions": ("view",),
                "permissions": (("retry_outboxmessage", "Can retry outbox message"),),
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="StoredEvent",
            fields=[
                ("event_id", models.UUIDField(primary_key=True, serialize=False)),
                ("stream", models.TextField()),
                ("version", models.BigIntegerField()),
                ("event_type", models.TextField()),
                ("payload", models.BinaryField()),
                ("content_type", models.TextField()),
                ("content_encoding", models.TextField()),
                ("headers", outrider.producer.django.fields.JsonText()),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "db_table": table_name("outbox_event"),
                "default_permissions": ("view",),
                "managed": False,
            },
        ),
    ]
