"""Runs sql/migrations/0004_event_order.sql, and adds the new columns to the state of the unmanaged model."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from outrider.producer.django.operations import RunOutboxMigration


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("outrider", "0003_failed_rows")]

    operations: ClassVar[list[Operation]] = [
        RunOutboxMigration(4),
        migrations.AddField("StoredEvent", "epoch", models.IntegerField(default=1), preserve_default=False),
        migrations.AddField("StoredEvent", "transaction_id", models.BigIntegerField(default=0), preserve_default=False),
        migrations.AddField("StoredEvent", "position", models.BigIntegerField(default=0), preserve_default=False),
        migrations.AddField("StoredEvent", "type_version", models.SmallIntegerField(default=1), preserve_default=False),
    ]
