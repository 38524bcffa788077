"""The app's configuration: label `outbox`, and its system checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class OutboxConfig(AppConfig):
    name = "producer.django"
    label = "outbox"
    verbose_name = "Outbox"
    default = True

    def ready(self) -> None:
        from producer.django.checks import check_database, check_settings

        checks.register(check_settings, "outbox")
        checks.register(check_database, "outbox", checks.Tags.database)
