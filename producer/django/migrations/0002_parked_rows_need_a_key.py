"""Runs sql/migrations/0002_parked_rows_need_a_key.sql. The models are unmanaged: their state does not change."""

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from outrider.producer.django.operations import RunOutboxMigration


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("outrider", "0001_initial")]

    operations: ClassVar[list[Operation]] = [RunOutboxMigration(2)]
