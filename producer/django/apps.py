"""The app's configuration: label `outrider`, and its system checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class OutboxConfig(AppConfig):
    name = "outrider.producer.django"
    label = "outrider"
    verbose_name = "Outrider"
    default = True

    def ready(self) -> None:
        from outrider.producer.django.checks import check_settings
        from outrider.producer.django.database_checks import check_database

        checks.register(check_settings, "outrider")
        checks.register(check_database, "outrider", checks.Tags.database)
