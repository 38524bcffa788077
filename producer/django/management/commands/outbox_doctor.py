"""`manage.py outbox_doctor`: `outrider doctor` with Django's settings."""

from __future__ import annotations

from outrider.producer.django.click_command import PlainCommand


class Command(PlainCommand):
    help = "Examine the outbox: database, replication, tables, roles, services, broker; a line for each check."
    plain = "outrider doctor"
